//! What each tool is for, in the words that a model reads. What its arguments mean stands with the
//! arguments themselves.

use bellglass_protocol::tool::ToolCall;

/// A tool's description; empty for a tool that nobody has described yet.
pub(super) fn of(name: &str) -> &'static str {
    match name {
        "plan" => {
            "Writes down the checklist of this task, which the user watches. Call it before you \
             begin anything that takes more than two or three actions, and again whenever a step \
             is done or the plan turns out to be wrong. Give all steps each time, in order; have \
             exactly one `in_progress` while you work. Each step is something that can be seen to \
             be done, such as \"tests of the parser pass\"."
        }
        "recall" => {
            "Searches everything that happened in this job so far, also what is no longer shown to \
             you: your own words, tool calls, and their results. Returns short excerpts with entry \
             numbers; read a whole entry with `read_history`. Use it before you repeat work or \
             guess at something that you saw earlier."
        }
        "read_history" => {
            "Reads entries of this job's history in full, by number. Notes such as \"entry 57\" in \
             shortened results, and the finds of `recall`, name the numbers. A long range is cut; \
             ask for the rest by a later start."
        }
        "read_output" => {
            "Reads lines of the whole output of an earlier step. Use it when a result says that \
             some of its output was left out and what you need is in that part. Step numbers stand \
             in the result."
        }
        "ask_user" => {
            "Asks the user one question and waits for the answer, which may take hours. Use it only \
             when going on without an answer would likely waste the work or do something that \
             cannot be undone. Where a sensible choice exists, make it and mention it in the \
             summary instead."
        }
        "finish" => {
            "Ends the task. Call it alone, once you have seen with your own eyes (a test run, a \
             program's output, a file read back) that what was asked for is there, or once you are \
             sure that it cannot be done. All files in /workspace are then handed to the user. \
             Nothing can be done after it."
        }
        "shell" => {
            "Runs a command line with bash in /workspace and returns its output and exit code. \
             Without `session` each call is a new shell: a changed folder or variable is gone at \
             the next call, files and background processes stay, and nothing can be typed in. With \
             `session` it runs in a terminal that lives on: use one for servers (with `wait_for` a \
             port or a pattern), for prompts and for full-screen programs, and steer it by \
             `send_input`. Set `timeout` for what may take long. To look at files and change them, \
             the file tools are quicker and safer than cat, sed and heredocs."
        }
        "python" => {
            "Runs Python 3 code in /workspace, in a kernel that keeps what you define from call to \
             call, as a notebook does. The value of the last line is shown; figures of matplotlib \
             come as pictures. Good for calculating, for reading and making data files, and for \
             checking an idea quickly."
        }
        "typescript" => {
            "Runs TypeScript or JavaScript in /workspace, in a Deno kernel that keeps what you \
             define from call to call. Types are stripped and not checked; top-level await and \
             `npm:` imports work where the network allows them."
        }
        "write_file" => {
            "Creates a file, or replaces all of an existing one, with exactly the content that you \
             give. Missing folders are made. For a small change of an existing file use `edit_file`, \
             which cannot lose the rest of it."
        }
        "read_file" => {
            "Reads a text file, with line numbers. Read a file before you change it. For a long \
             file give `offset` and `limit` and read the part that matters; find it with \
             `search_files` first."
        }
        "edit_file" => {
            "Replaces one piece of text in a file. `old` must stand in the file exactly once, without \
             line numbers; take enough lines around the change to make it the only place. Copy it \
             exactly: spaces at line ends, indentation and \\r\\n are forgiven only where a single \
             place can be meant, `new` is then written as the file is, and the result says so. If it \
             is refused, read the file again: it is not as you remember it."
        }
        "move_file" => {
            "Moves or renames a file or a folder within the workspace. Fails rather than overwrite \
             something. Missing folders on the way to the new place are made."
        }
        "delete_file" => {
            "Deletes a file or a folder of the workspace. A folder that is not empty needs \
             `recursive`. There is no way back, so look at what is in it first."
        }
        "list_files" => {
            "Shows a folder as a tree, without what .gitignore names. The first thing to do in a \
             workspace that you do not know. Give a `path` and a small `depth` where there are many \
             files."
        }
        "search_files" => {
            "Finds lines that match a regular expression in the files of the workspace, with file \
             names and line numbers, leaving out what .gitignore names. The quickest way to find \
             where something is defined or used. Narrow it down with `path` and `glob`."
        }
        // All others are described where they are defined.
        name => ToolCall::description(name).unwrap_or_default(),
    }
}
