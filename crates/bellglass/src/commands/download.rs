//! `bellglass download`: a job's workspace as a ZIP.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bellglass_protocol::quantity::ByteSize;
use futures::StreamExt as _;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::{Format, print_json};
use crate::api_client::ApiClient;
use crate::cli;
use crate::exit::Exit;

pub(super) async fn download(flags: &cli::Download, format: Format) -> anyhow::Result<Exit> {
    let client = ApiClient::new(&flags.server)?;
    let output = flags.output.clone().unwrap_or_else(|| format!("{}.zip", flags.job).into());
    let (expected, mut pieces) = client.result(flags.job).await?;

    let to_stdout = output == Path::new("-");
    // Written beside its place and moved there when whole, so that half a ZIP is never taken for one.
    let draft = PathBuf::from(format!("{}.part", output.display()));
    let mut target: Box<dyn tokio::io::AsyncWrite + Unpin + Send> = if to_stdout {
        Box::new(tokio::io::stdout())
    } else {
        let file = tokio::fs::File::create(&draft).await;
        Box::new(file.with_context(|| format!("cannot write {}", draft.display()))?)
    };
    let mut bytes = 0u64;
    let copied: anyhow::Result<()> = async {
        while let Some(piece) = pieces.next().await {
            let piece = piece?;
            bytes += piece.len() as u64;
            target.write_all(&piece).await?;
        }
        target.flush().await?;
        anyhow::ensure!(
            expected.is_none_or(|expected| expected == bytes),
            "the download ended after {bytes} bytes of {}",
            expected.unwrap_or_default()
        );
        Ok(())
    }
    .await;
    if to_stdout {
        copied?;
        return Ok(Exit::Success);
    }
    if let Err(error) = copied {
        let _ = tokio::fs::remove_file(&draft).await;
        return Err(error);
    }
    tokio::fs::rename(&draft, &output).await?;
    match format {
        Format::Json => print_json(&json!({ "file": output, "bytes": bytes }))?,
        Format::Text => println!("{} ({})", output.display(), ByteSize(bytes)),
    }
    Ok(Exit::Success)
}
