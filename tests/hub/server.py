"""A Hugging Face hub on this machine, as far as downloads need one, with faults on request. Standard library only.

    hub = Hub()                                   # listens on two ports of 127.0.0.1: the hub, and its CDN
    hub.add("org/name", {"config.json": b"..."})  # a commit of a repository; files over `large` bytes go through the CDN
    hub.faults["model.safetensors"] = [cut(1000), status(503)]   # one a request for that file, in order
    hub.log                                       # every request: Request(port, path, headers)
    Hub(tls={"hub": (certificate, key)})          # https for one of the two, or both

As a program (`server.py FOLDER`) it serves FOLDER/org/name/... and prints the address.
"""
import collections
import hashlib
import http.server
import json
import os
import ssl
import sys
import threading
import time
import urllib.parse

Request = collections.namedtuple("Request", "where path headers method time")
Fault = collections.namedtuple("Fault", "kind value where")


def cut(after, where="data"):
    """The connection ends after so many bytes of the body."""
    return Fault("cut", after, where)


def status(code, headers=None, where="data"):
    return Fault("status", (code, headers or {}), where)


def ignore_range(where="data"):
    return Fault("ignore_range", None, where)


def corrupt(where="data"):
    """One byte of the body is another."""
    return Fault("corrupt", None, where)


def replace(content, etag='"new"', where="data"):
    """Other content of the same length under another entity tag."""
    return Fault("replace", (content, etag), where)


def stall(seconds, after=0, where="data"):
    return Fault("stall", (seconds, after), where)


def wrong_range(where="data"):
    """206 for another range than the one asked for."""
    return Fault("wrong_range", None, where)


def slow(bytes_per_second, where="data"):
    return Fault("slow", bytes_per_second, where)


def longer(extra, where="data"):
    """More bytes than the listing says, without a Content-Length."""
    return Fault("longer", extra, where)


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    def __init__(self):
        self.refs = {}
        self.commits = {}
        self.gated = False
        self.private = False


class Hub:
    def __init__(self, large=4096, page=1000, tls=None):
        self.large, self.page = large, page
        self.repositories = {}
        self.faults = collections.defaultdict(list)
        self.api_faults = []
        self.log = []
        self.token = "hf_secret"
        self.lock = threading.Lock()
        self.expired = set()
        self.sent = 0  # bytes of slow answers
        self.links_to_public_hub = False
        self.send_commit = None
        self.tls = tls or {}
        self.servers = [self._serve("hub"), self._serve("cdn")]
        self.url, self.cdn = ("%s://127.0.0.1:%d" % ("https" if where in self.tls else "http", server.server_port)
                              for where, server in zip(("hub", "cdn"), self.servers))

    def _serve(self, where):
        hub = self

        class Handler(HubHandler):
            pass

        Handler.hub, Handler.where = hub, where
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if where in self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self.tls[where])
            # The handshake is the handler's business: one that fails must not hold others up.
            server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def add(self, repo, files, revision="main"):
        repository = self.repositories.setdefault(repo, Repository())
        content = "".join(sorted(f"{p} {hashlib.sha256(d).hexdigest()}" for p, d in files.items())) + repo + revision
        commit = hashlib.sha1(content.encode()).hexdigest()
        repository.commits[commit] = dict(files)
        repository.refs[revision] = commit
        return commit

    def is_large(self, data):
        return len(data) > self.large

    def digest(self, data):
        return hashlib.sha256(data).hexdigest() if self.is_large(data) else git_sha1(data)

    def take_fault(self, path, where):
        with self.lock:
            for i, fault in enumerate(self.faults.get(path, [])):
                if fault.where == where:
                    return self.faults[path].pop(i)
        return None

    def requests(self, contains="", where=None):
        return [r for r in self.log if contains in r.path and (where is None or r.where == where)]


class HubHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub, where = None, None

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        self.hub.log.append(Request(self.where, self.path, dict(self.headers.items()), self.command, time.time()))
        try:
            if self.where == "cdn":
                self.cdn()
            else:
                self.api()
        except (BrokenPipeError, ConnectionResetError, ssl.SSLError):
            self.close_connection = True

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, ssl.SSLError):  # a client that does not trust us
            self.close_connection = True

    def reply(self, code, body=b"", headers=None):
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, code, error, message):
        self.reply(code, json.dumps({"error": message}).encode(), {"X-Error-Code": error, "X-Error-Message": message})

    def find(self, name):
        """The repository, or None after an answer."""
        repository = self.hub.repositories.get(name)
        token = self.headers.get("Authorization")
        if token is not None and token != "Bearer " + self.hub.token:
            self.reply(401, b"{}", {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None or (repository.private and token is None):
            self.refuse(401 if token is None else 404, "RepoNotFound", "Repository not found")
        else:
            return repository
        return None

    def commit_of(self, repository, revision):
        commit = repository.refs.get(revision, revision)
        if commit in repository.commits:
            return commit
        self.refuse(404, "RevisionNotFound", "Invalid rev id: " + revision)
        return None

    def api(self):
        url = urllib.parse.urlsplit(self.path)
        parts = url.path.strip("/").split("/")
        query = urllib.parse.parse_qs(url.query)
        if parts[0] == "api":
            with self.hub.lock:
                fault = self.hub.api_faults.pop(0) if self.hub.api_faults else None
            if fault is not None:
                code, headers = fault.value
                return self.reply(code, b"{}", headers)
            name, verb = "/".join(parts[2:4]), parts[4] if len(parts) > 4 else "revision"
            repository = self.find(name)
            if repository is None:
                return
            revision = urllib.parse.unquote("/".join(parts[5:])) or "main"
            commit = self.commit_of(repository, revision)
            if commit is None:
                return
            if verb == "revision":
                siblings = [{"rfilename": path} for path in sorted(repository.commits[commit])]
                body = {"id": name, "modelId": name, "sha": commit, "private": repository.private, "gated": repository.gated, "siblings": siblings,
                        "tags": [], "downloads": 0, "likes": 0}
                return self.reply(200, json.dumps(body).encode(), {"Content-Type": "application/json"})
            return self.tree(repository, name, commit, query)
        if "resolve" not in parts:
            return self.reply(404)
        at = parts.index("resolve")
        self.resolve("/".join(parts[:at]), urllib.parse.unquote(parts[at + 1]), urllib.parse.unquote("/".join(parts[at + 2:])))

    def tree(self, repository, name, commit, query):
        entries, folders = [], set()
        for path, data in sorted(repository.commits[commit].items()):
            folder = os.path.dirname(path)
            while folder and folder not in folders:
                folders.add(folder)
                entries.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": folder})
                folder = os.path.dirname(folder)
            entry = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
            if self.hub.is_large(data):
                sha = hashlib.sha256(data).hexdigest()
                entry["oid"] = git_sha1(b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize %d\n" % (sha.encode(), len(data)))
                entry["lfs"] = {"oid": sha, "size": len(data), "pointerSize": 134}
            entries.append(entry)
        start = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if start + self.hub.page < len(entries):
            host = "https://huggingface.co" if self.hub.links_to_public_hub else self.hub.url
            headers["Link"] = f'<{host}/api/models/{name}/tree/{commit}?recursive=true&cursor={start + self.hub.page}>; rel="next"'
        self.reply(200, json.dumps(entries[start:start + self.hub.page]).encode(), headers)

    def resolve(self, name, revision, path):
        repository = self.find(name)
        if repository is None:
            return
        if repository.gated and self.headers.get("Authorization") is None:
            return self.refuse(401, "GatedRepo", f"Access to model {name} is restricted. You must have access to it and be authenticated to access it.")
        if repository.gated == "denied":
            return self.refuse(403, "GatedRepo", f"Access to model {name} is restricted and you are not in the authorized list.")
        commit = self.commit_of(repository, revision)
        if commit is None:
            return
        data = repository.commits[commit].get(path)
        if data is None:
            return self.refuse(404, "EntryNotFound", "Entry not found")
        fault = self.hub.take_fault(path, "hub")
        if fault is not None and fault.kind == "status":
            return self.reply(fault.value[0], b"", fault.value[1])
        headers = {"X-Repo-Commit": self.hub.send_commit or commit}
        if self.hub.is_large(data):
            sha = hashlib.sha256(data).hexdigest()
            headers.update({"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{sha}"',
                            "Location": f"{self.hub.cdn}/{name}/{commit}/{urllib.parse.quote(path)}?Expires=1&Signature=abc%2Bdef"})
            return self.reply(302, b"Found. Redirecting", headers)
        headers["ETag"] = f'"{git_sha1(data)}"'
        self.send(data, headers, self.hub.take_fault(path, "data"))

    def cdn(self):
        url = urllib.parse.urlsplit(self.path)
        parts = urllib.parse.unquote(url.path).strip("/").split("/")
        data = self.hub.repositories["/".join(parts[:2])].commits[parts[2]]["/".join(parts[3:])]
        path = "/".join(parts[3:])
        self.send(data, {"ETag": f'"{hashlib.md5(data).hexdigest()}"'}, self.hub.take_fault(path, "data"))

    def send(self, data, headers, fault):
        kind = fault.kind if fault else None
        if kind == "status":
            return self.reply(fault.value[0], b"no", fault.value[1])
        if kind == "corrupt":
            data = data[:len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1:]
        if kind == "replace":
            data, headers = fault.value[0], dict(headers, ETag=fault.value[1])
        if kind == "longer":
            data += bytes(fault.value)
        code, body = 200, data
        wanted = self.headers.get("Range")
        if wanted and kind != "ignore_range":
            first, _, last = wanted[len("bytes="):].partition("-")
            first, last = int(first), min(int(last) if last else len(data) - 1, len(data) - 1)
            if first >= len(data):
                return self.reply(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            code, body = 206, data[first:last + 1]
            shift = 1 if kind == "wrong_range" else 0
            headers = dict(headers, **{"Content-Range": f"bytes {first + shift}-{last + shift}/{len(data) + shift}"})
        self.send_response(code)
        for name, value in dict(headers, **{"Accept-Ranges": "bytes"}).items():
            self.send_header(name, value)
        if kind == "longer":
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "stall":
            self.wfile.write(body[:fault.value[1]])
            self.wfile.flush()
            time.sleep(fault.value[0])
            body = body[fault.value[1]:]
        if kind == "cut":
            self.wfile.write(body[:fault.value])
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
            return
        if kind == "slow":
            step = max(1, fault.value // 20)
            for i in range(0, len(body), step):
                self.wfile.write(body[i:i + step])
                self.wfile.flush()
                with self.hub.lock:
                    self.hub.sent += len(body[i:i + step])
                time.sleep(0.05)
            return
        self.wfile.write(body)


def main(folder):
    hub = Hub(large=1 << 20)
    for owner in sorted(os.listdir(folder)):
        for name in sorted(os.listdir(os.path.join(folder, owner))):
            files, root = {}, os.path.join(folder, owner, name)
            for where, _, names in os.walk(root):
                for file in names:
                    path = os.path.join(where, file)
                    with open(path, "rb") as handle:
                        files[os.path.relpath(path, root)] = handle.read()
            hub.add(f"{owner}/{name}", files)
    print(hub.url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1])
