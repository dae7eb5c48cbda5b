// Puts a text into the clipboard. Browsers lend it to pages of secure addresses alone; what is left for others, such
// as a server in the same house that is called by its name, is what the browser does for Ctrl+C.

/** Whether it is there now. */
export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyAsTyped(text);
  }
}

function copyAsTyped(text: string): boolean {
  let done = false;
  const fill = (event: ClipboardEvent) => {
    event.clipboardData?.setData("text/plain", text);
    event.preventDefault();
    done = event.clipboardData !== null;
  };
  document.addEventListener("copy", fill);
  const asked = document.execCommand("copy");
  document.removeEventListener("copy", fill);
  return asked && done;
}
