"""An editor that talks to a language server, as VS Code does."""

import json
import subprocess
import sys
import threading

LIMIT = 300  # seconds, after which a server that doesn't answer is ended


class LanguageServer:
    """A Python module that is a language server, on an empty folder."""

    def __init__(self, module, folder):
        self.command = [sys.executable, "-m", module, "--stdio"]
        self.folder = folder
        self.number = 0

    def __enter__(self):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(self.command, cwd=self.folder, **pipes)
        self.limit = threading.Timer(LIMIT, self.process.kill)
        self.limit.start()
        self._ask(
            "initialize",
            processId=None,
            rootUri=self.folder.as_uri(),
            workspaceFolders=[{"uri": self.folder.as_uri(), "name": "folder"}],
            capabilities={
                "workspace": {"configuration": True},
                "textDocument": {"hover": {"contentFormat": ["plaintext"]}},
            },
        )
        self._send(method="initialized", params={})
        return self

    def __exit__(self, *error):
        self._send(id=0, method="shutdown")
        self._send(method="exit")
        self.process.communicate()
        self.limit.cancel()

    def complete(self, program):
        """What can follow this program."""
        return [item["label"] for item in self._ask_at_end("completion", program)["items"]]

    def hover(self, program):
        """What is shown for the last name of this program."""
        return self._ask_at_end("hover", program)["contents"]["value"]

    def _ask_at_end(self, question, program):
        uri = f"{self.folder.as_uri()}/program_{self.number}.py"
        document = {"uri": uri, "languageId": "python", "version": 1, "text": program}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        lines = program.split("\n")
        end = {"line": len(lines) - 1, "character": len(lines[-1])}
        return self._ask(f"textDocument/{question}", textDocument={"uri": uri}, position=end)

    def _ask(self, method, **params):
        self.number += 1
        self._send(id=self.number, method=method, params=params)
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == self.number:
                return message["result"]
            if "method" in message and "id" in message:  # the server asks the editor
                self._send(id=message["id"], result=self._answer(**message))

    def _answer(self, method, params=None, **_):
        if method != "workspace/configuration":
            return None
        return [{"pythonPath": sys.executable} for _ in params["items"]]

    def _send(self, **message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self.process.stdin.flush()

    def _receive(self):
        length = None
        for line in iter(self.process.stdout.readline, b"\r\n"):
            if not line:
                raise EOFError("the language server has ended")
            name, value = line.split(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return json.loads(self.process.stdout.read(length))
