"""The row of a node's controller that speaks Redfish: a server with TLS, a user and a password, in place of a board's."""
import base64
import http.server
import json
import ssl
import subprocess
import threading
import time

from effects import close, equal, row
from harness import work

RESOURCES = {
    "/redfish/v1/Chassis": {"Members": [{"@odata.id": "/redfish/v1/Chassis/Self"}]},
    "/redfish/v1/Chassis/Self": {"Id": "Self", "Power": {"@odata.id": "/redfish/v1/Chassis/Self/Power"}},
    "/redfish/v1/Chassis/Self/Power": {"PowerControl": [{"PowerConsumedWatts": 420}, {"PowerConsumedWatts": 35}]},
    "/long": {"Watts": 1, "pad": "x" * (1 << 21)},
}


class Controller(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept, and the controller ends them when it likes

    def do_GET(self):
        self.close_connection = self.path.endswith("/Power")
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"root:secret").decode():
            return self.answer(401)
        if self.path == "/moved":
            return self.answer(302, headers={"Location": "/redfish/v1/Chassis/Self/Power"})
        if self.path == "/slow":
            time.sleep(8)
        known = RESOURCES.get(self.path)
        return self.answer(404) if known is None else self.answer(200, json.dumps(known).encode())

    def answer(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def controller():
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
                    "-days", "2", "-keyout", "bmc.key", "-out", "bmc.pem"], cwd=work, check=True, capture_output=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Controller)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(work / "bmc.pem", work / "bmc.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@row("energy list --meters", "energy live --meters")
def redfish(case):
    server = controller()
    try:
        url = f"redfish:https://localhost:{server.server_address[1]}"
        (work / "netrc").write_text("machine localhost login root password secret\n")
        (work / "netrc").chmod(0o600)
        known = {"NETRC": str(work / "netrc"), "CURL_CA_BUNDLE": str(work / "bmc.pem"), "https_proxy": "http://127.0.0.1:9"}  # a proxy that is not there

        def listed(meter, env=None):
            return json.loads(case.molen("energy", "list", "--meters", meter, "--format", "json", env={**known, **(env or {})}).stdout)

        found = listed(url)["available"]
        equal("scope and meter", [(a["scope"], a["meter"]) for a in found], [("node", "redfish")])
        assert "/redfish/v1/Chassis/Self/Power#/PowerControl/0/PowerConsumedWatts" in json.dumps(found), found
        lines = case.molen("energy", "live", "--meters", url, "--every", 0.4, "--count", 2, "--format", "json", env=known).stdout.splitlines()
        for line in lines:
            close("watts of the node", json.loads(line)["power_w"]["node"], 420, 0.05)
        named = f"{url}/redfish/v1/Chassis/Self/Power#/PowerControl/1/PowerConsumedWatts"
        lines = case.molen("energy", "live", "--meters", named, "--every", 0.4, "--count", 2, "--format", "json", env=known).stdout.splitlines()
        close("watts of a part that is named", json.loads(lines[-1])["power_w"]["node"], 35, 0.05)
        for meter, env, says in ((url, {"CURL_CA_BUNDLE": ""}, ["CURL_CA_BUNDLE names a file"]), (url, {"CURL_CA_BUNDLE": "/nowhere"}, ["CURL_CA_BUNDLE names a file"]), (url, {"NETRC": "/nowhere"}, ["HTTP 401", "netrc"]), (f"{url}/none#/Watts", {}, ["HTTP 404"]),
                                 (f"{url}/moved#/Watts", {}, ["HTTP 302"]), (f"{url}/long#/Watts", {}, ["more than"]), (url.replace("https", "http"), {}, ["https alone"]),
                                 (url.replace("localhost", "root:secret@localhost"), {}, ["netrc file"]), ("redfish", {}, ["redfish:URL"])):
            case.refused("energy", "list", "--meters", meter, says=says, env={**known, **env})
        begun = time.monotonic()
        case.refused("energy", "list", "--meters", f"{url}/slow#/Watts", says="imeout", env=known)
        assert 4.5 < time.monotonic() - begun < 7.5, time.monotonic() - begun
    finally:
        server.shutdown()
