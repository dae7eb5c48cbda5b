//! What was run in a kernel, as a notebook that Jupyter opens.

use serde_json::{Value, json};

/// Cells and outputs together. What is more than this is left out, and the notebook says so.
const MOST_BYTES: usize = 32 << 20;

#[derive(Default)]
pub(super) struct Notebook {
    cells: Vec<Value>,
    bytes: usize,
    left_out: usize,
}

impl Notebook {
    pub(super) fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }

    /// Adds a cell that was run. Its outputs are in Jupyter's own form.
    pub(super) fn add(&mut self, code: &str, count: Option<u64>, mut outputs: Vec<Value>) {
        let size = |value: &Value| value.to_string().len();
        let outputs_bytes: usize = outputs.iter().map(size).sum();
        let mut bytes = code.len() + outputs_bytes;
        if self.bytes + bytes > MOST_BYTES && !outputs.is_empty() {
            let text = format!("[{outputs_bytes} bytes of output were left out]\n");
            outputs = vec![json!({"output_type": "stream", "name": "stderr", "text": text})];
            bytes = code.len() + text.len();
        }
        if self.bytes + bytes > MOST_BYTES {
            self.left_out += 1;
            return;
        }
        self.bytes += bytes;
        self.cells.push(json!({
            "id": format!("cell-{}", self.cells.len() + 1),
            "cell_type": "code",
            "execution_count": count,
            "metadata": {},
            "source": code,
            "outputs": outputs,
        }));
    }

    /// The whole document, in format 4.5.
    pub(super) fn document(&self, kernel: &Value, language: &Value) -> Vec<u8> {
        let mut cells = self.cells.clone();
        if self.left_out > 0 {
            let source = format!("{} more cells were left out of this notebook.", self.left_out);
            let id = "left-out";
            let cell = json!({"id": id, "cell_type": "markdown", "metadata": {}, "source": source});
            cells.push(cell);
        }
        let document = json!({
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": { "kernelspec": kernel, "language_info": language },
            "cells": cells,
        });
        serde_json::to_vec_pretty(&document).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_is_left_out_and_said() {
        let mut notebook = Notebook::default();
        let large =
            json!({"output_type": "stream", "name": "stdout", "text": "x".repeat(MOST_BYTES)});
        notebook.add("print()", Some(1), vec![large]);
        notebook.add("1", Some(2), vec![]);
        notebook.add(&"#".repeat(MOST_BYTES), Some(3), vec![]);
        let document: Value =
            serde_json::from_slice(&notebook.document(&json!({}), &json!({}))).unwrap();
        let cells = document["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 3);
        assert!(cells[0]["outputs"][0]["text"].as_str().unwrap().contains("left out"));
        assert_eq!((&cells[1]["source"], &cells[1]["execution_count"]), (&json!("1"), &json!(2)));
        assert!(cells[2]["source"].as_str().unwrap().starts_with("1 more"));
    }
}
