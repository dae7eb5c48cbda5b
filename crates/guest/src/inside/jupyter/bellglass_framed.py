"""Lets JupyterLab's page work in a frame of another site, where a browser may refuse to keep anything."""

from jupyterlab_server.handlers import LabHandler

# Without a place to keep names of windows, JupyterLab takes itself for a second one and loads itself again,
# for ever. What is kept in memory is gone with the frame, and there is nothing in it to miss.
KEEPING = """<script>
  try { window.localStorage.length; } catch (refused) {
    const kept = new Map();
    const storage = {
      get length() { return kept.size; },
      key: (n) => [...kept.keys()][n] ?? null,
      getItem: (key) => kept.get(String(key)) ?? null,
      setItem: (key, value) => void kept.set(String(key), String(value)),
      removeItem: (key) => void kept.delete(String(key)),
      clear: () => kept.clear(),
    };
    for (const name of ["localStorage", "sessionStorage"]) {
      Object.defineProperty(window, name, { value: storage });
    }
  }
</script>"""


def apply():
    rendered = LabHandler.render_template

    def render_template(self, name, **variables):
        return rendered(self, name, **variables).replace("<head>", "<head>" + KEEPING, 1)

    LabHandler.render_template = render_template
