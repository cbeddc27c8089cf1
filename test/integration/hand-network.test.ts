/** What hands reach, asked from inside of them: process hands of an agent in a network of its own, and the world beyond. */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { type NetworkHands, RECORDS, startNetworkHands } from "../kit/network-hands.ts";
import { NetworkRig, WORLD } from "../kit/network-rig.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";

const { web, other } = WORLD;

describe.skipIf(whyNoPrivateNetwork() !== undefined)("what a hand reaches", () => {
  let rig: NetworkRig;
  let agent: NetworkHands["agent"];
  let bash: NetworkHands["bash"];
  let fetch: NetworkHands["fetch"];

  beforeAll(async () => {
    rig = await NetworkRig.start();
    ({ agent, bash, fetch } = await startNetworkHands(rig));
    await agent.call("listenLocally", "0.0.0.0", 8080);
  });
  afterAll(() => rig.remove());
  beforeEach(async () => {
    await rig.farSide.call("setRecords", RECORDS);
    await rig.farSide.call("takeHits");
  });

  test("with the network none, a hand has loopback and nothing else: no address, no name, no variable of a proxy", async () => {
    expect(
      await bash("none", "tail -n +3 /proc/net/dev | cut -d: -f1; ls /sys 2>&1; env | grep -ci proxy; true"),
    ).toMatch(/^ *lo\n.*\n?0$/);
    const tries = [
      `http://${web}/`,
      `http://${WORLD.metadata}/`,
      `http://${rig.network.agentAddress}:8080/`,
      "http://web.example/",
    ];
    for (const url of tries) {
      expect(await bash("none", `curl -s -m 5 ${url}; echo $?`)).toMatch(/^(6|7)$/);
    }
    expect(
      await bash(
        "none",
        "timeout 60 python3 -m http.server 8099 >/dev/null 2>&1 & for i in $(seq 500); do curl -sf -m 10 -o /dev/null http://127.0.0.1:8099/ && echo served && break; sleep 0.1; done; kill $!",
      ),
    ).toContain("served");
    expect(await rig.farSide.call("takeHits")).toEqual([]);
  });

  test("with the network limited, allowed hosts answer over HTTP, HTTPS and SOCKS, by IPv4 and IPv6, in any case and with a dot at the end", async () => {
    for (const url of [
      "http://web.example/path?query=1",
      "https://web.example/",
      "http://web.example:8080/",
      "https://WEB.Example./",
      "http://a.wild.example/",
      "https://b.a.wild.example/",
      "http://six.example/",
      "https://by-file.example/",
    ]) {
      expect([url, await fetch(url)]).toEqual([url, "200"]);
    }
    expect(await fetch("https://web.example/", "--socks5-hostname 127.0.0.1:7480")).toBe("200");
    const reached = await rig.farSide.call("takeHits");
    expect(new Set(reached.map(({ address }) => address))).toEqual(new Set([web, WORLD.webV6]));
    expect(new Set(reached.map(({ port }) => port))).toEqual(new Set([80, 443, 8080]));
  });

  test("other hosts are refused in words that say what is allowed, and nothing of them is asked or reached", async () => {
    for (const url of [
      "http://evil.example/",
      "http://wild.example/",
      "http://notweb.example/",
      "http://web.example.evil.example/",
      "http://xa.wild.example.com/",
    ]) {
      expect([url, await fetch(url)]).toEqual([url, "403"]);
    }
    expect(await bash("limited", "cat body")).toMatch(
      /^xa\.wild\.example\.com is not among the hosts .*allowed: web\.example, \*\.wild\.example/,
    );
    expect(await bash("limited", "curl -sv https://evil.example/ 2>&1 | grep -o 'HTTP/1.1 403.*'")).toMatch(
      /403 Host not allowed by the environment/,
    );
    expect(
      await bash(
        "limited",
        "python3 -c \"import urllib.request as u; u.urlopen('https://evil.example/')\" 2>&1 | tail -1",
      ),
    ).toContain("Tunnel connection failed: 403 Host not allowed by the environment");
    expect(await fetch("https://evil.example/", "--socks5-hostname 127.0.0.1:7480")).toMatch(/^000 97$/);
    expect(await rig.farSide.call("asked")).toEqual([]);
    expect(await rig.farSide.call("takeHits")).toEqual([]);
  });

  test("past the relay there is no way: no route, no name server, not even to allowed hosts", async () => {
    for (const url of [
      `http://${web}/`,
      `http://[${WORLD.webV6}]/`,
      `http://${WORLD.metadata}/`,
      `http://${rig.network.agentAddress}:8080/`,
      "http://10.77.1.1/",
      "http://172.17.0.1/",
    ]) {
      expect([url, await fetch(url, "--noproxy '*' -m 5")]).toEqual([url, "000 7"]);
    }
    expect(await fetch("http://web.example/", "--noproxy '*' -m 5")).toBe("000 6");
    expect(
      await bash(
        "limited",
        `python3 - <<'P' 2>&1 | tail -1
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(b"x", ("${rig.network.serverAddress}", 53))
P`,
      ),
    ).toContain("Network is unreachable");
    expect(await rig.farSide.call("takeHits")).toEqual([]);
  });

  test("a name that leads to this machine, a private network or metadata is not dialled, in whatever form the address comes", async () => {
    for (const name of ["private", "metadata", "mapped", "agent", "own"]) {
      for (const scheme of ["http", "https"]) {
        const status = await fetch(`${scheme}://${name}.example:8080/`);
        expect([name, status]).toEqual([name, scheme === "http" ? "403" : "000 56"]);
      }
    }
    expect(await fetch("http://metadata.example/latest/meta-data/")).toBe("403");
    expect(await bash("limited", "cat body")).toMatch(
      /address inside of a private network or of this machine/,
    );
    expect(await rig.farSide.call("takeHits")).toEqual([]);
    // Of several addresses those that may be reached count.
    expect(await fetch("http://both.example/")).toBe("200");
    expect(await rig.farSide.call("takeHits")).toEqual([{ address: web, port: 80 }]);
  });

  test("DNS rebinding does not help: each connection goes to an address that was looked at", async () => {
    expect(await fetch("http://rebind.example:8080/")).toBe("200");
    expect(await fetch("http://rebind.example:8080/")).toBe("403");
    expect(await bash("limited", "cat body")).not.toContain("agent's own");
    // A client that resolves by itself names an address, which is not in the list.
    expect(await fetch("http://web.example/", `--connect-to web.example:80:${web}:80`)).toMatch(/403|000/);
    expect(await fetch(`http://${web}/`)).toBe("403");
  });

  test("other spellings of hosts are refused and reach nothing", async () => {
    const connects = [
      "2130706433:80",
      "0x7f000001:80",
      "0x7f.1:80",
      "127.1:80",
      "0177.0.0.1:80",
      "127.0.0.1:8080",
      "127.0.0.1.:8080",
      "[::1]:8080",
      "[::ffff:127.0.0.1]:8080",
      "[::ffff:a9fe:a9fe]:80",
      "[fe80::1%25lo]:80",
      "[fe80::1%lo]:80",
      `[${WORLD.webV6}]:80`,
      `${WORLD.metadata}:80`,
      `${WORLD.web}:80`,
      "169.254.169.254.:80",
      "2852039166:80",
      "0251.0376.0251.0376:80",
      "web.example@evil.example:80",
      "evil.example#web.example:80",
      "web.example%2eevil.example:80",
      "evil.example%00.web.example:80",
      "web。example:80",
      "ｗｅｂ.example:80",
      "evil.example:80:80",
      "web.example",
      "web.example:0",
      "web.example:65536",
      "web.example:-1",
      "web..example:80",
      ".web.example:80",
      "*.wild.example:80",
      ".wild.example:80",
      "web.example..:80",
      "localhost:8080",
      "a.localhost:8080",
      "http://web.example/:80",
      "",
      ":80",
      "web.example :80",
    ];
    const urls = [
      "http://web.example@evil.example/",
      "http://evil.example#@web.example/",
      "http://evil.example\\@web.example/",
      "http://127.0.0.1:8080/",
      "http://0x7f.1:8080/",
      "http://[::1]:8080/",
      "http://user:pw@web.example/",
      "https://web.example/",
      "ftp://web.example/",
      "/",
      "*",
      "//web.example/",
      "http:///web.example/",
      "http://web.example:80@evil.example/",
      "http://evil.example?.web.example/",
      "http://evil.example%2f.wild.example/",
    ];
    const lines = [
      ...connects.map((target) => `CONNECT ${target} HTTP/1.1`),
      ...urls.map((url) => `GET ${url} HTTP/1.1`),
    ];
    const answers = await bash(
      "limited",
      `python3 - <<'P'
import json, socket
for line in json.loads(${JSON.stringify(JSON.stringify(lines))}):
    s = socket.create_connection(("127.0.0.1", 7480))
    s.settimeout(10)
    s.sendall((line + "\\r\\nHost: web.example\\r\\nConnection: close\\r\\n\\r\\n").encode())
    answer = s.recv(4096).split(b"\\r\\n")[0].decode()
    print(json.dumps([line, answer.split(" ")[1] if answer else "closed"]))
P`,
    );
    const got = answers
      .trim()
      .split("\n")
      .map((line) => JSON.parse(line) as [string, string]);
    expect(got).toHaveLength(lines.length);
    expect(got.filter(([, status]) => status !== "400" && status !== "403" && status !== "closed")).toEqual(
      [],
    );
    expect(await rig.farSide.call("takeHits")).toEqual([]);
  });

  test("a redirect is another request, and judged like one", async () => {
    expect(await fetch("http://web.example/redirect?to=http://a.wild.example/", "-L")).toBe("200");
    for (const to of ["http://evil.example/", `http://${WORLD.metadata}/`, "http://127.0.0.1:8080/"]) {
      const status = await fetch(`http://web.example/redirect?to=${to}`, "-L --noproxy nowhere.example");
      expect([to, status]).toEqual([to, "403"]);
    }
  });

  test("an address is reached where the environment names it, also a private one behind an allowed name, never metadata or loopback", async () => {
    const allowedHosts = [WORLD.private, WORLD.metadata, "127.0.0.1", "private.example", web];
    await agent.call("provision", "addresses", { mode: "limited", allowedHosts });
    const status = (url: string) =>
      bash("addresses", `curl -s -m 10 -o body -w '%{http_code}' --noproxy none ${url}; true`);
    expect(await status(`http://${WORLD.private}/`)).toBe("200");
    expect(await status("http://private.example/")).toBe("200");
    expect(await status(`http://${web}/`)).toBe("200");
    expect(await status(`http://${other}/`)).toBe("403");
    expect(await status(`http://${WORLD.metadata}/`)).toBe("403");
    expect(await status("http://127.0.0.1:8080/")).toBe("403");
    expect((await rig.farSide.call("takeHits")).map(({ address }) => address)).toEqual([
      WORLD.private,
      WORLD.private,
      web,
    ]);
    await agent.call("destroy", "addresses");
  });

  test("what the server hears is the request alone: the host of the URL, no header meant for a proxy", async () => {
    const head =
      "-H 'Host: evil.example' -H 'Proxy-Authorization: Basic c2VjcmV0' -H 'Connection: x-mine' -H 'X-Mine: 1' -H 'X-Kept: 1'";
    expect(await fetch("http://web.example/p?q=1", `-X PUT ${head} --data-binary 12345`)).toBe("200");
    const heard = JSON.parse(await bash("limited", "cat body"));
    expect(heard).toMatchObject({ method: "PUT", path: "/p?q=1", bytes: 5 });
    expect(heard.headers).toMatchObject({ host: "web.example", "x-kept": "1" });
    expect(Object.keys(heard.headers).join()).not.toMatch(/proxy|x-mine/);
    expect(await fetch("http://web.example/", "-H 'Transfer-Encoding: chunked' -d @/etc/passwd")).toBe("200");
    expect(JSON.parse(await bash("limited", "cat body")).bytes).toBeGreaterThan(100);
  });

  test("each request over one connection is judged by itself, also when many are sent at once", async () => {
    const answers = await bash(
      "limited",
      `python3 - <<'P'
import socket
hosts = ["web.example", "evil.example", "a.wild.example", "web.example", "127.0.0.1:8080", "web.example"]
s = socket.create_connection(("127.0.0.1", 7480)); s.settimeout(20)
for h in hosts[:3]: s.sendall(f"GET http://{h}/1 HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n".encode())
data = b""
while data.count(b"HTTP/1.1 ") < 2: data += s.recv(65536)
s.close()
s = socket.create_connection(("127.0.0.1", 7480)); s.settimeout(20)
s.sendall(b"".join(f"GET http://web.example/{i} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".encode() for i in range(20)))
more = b""
while more.count(b"far-side") < 20: more += s.recv(65536)
s.sendall(b"GET http://evil.example/ HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n")
end = s.recv(65536)
print([part.split()[0].decode() for part in data.split(b"HTTP/1.1 ")[1:]], more.count(b"200 OK"), end.split()[1].decode())
print([int(p.split(b'"')[0]) for p in more.split(b'"path":"/')[1:]] == list(range(20)))
P`,
    );
    expect(answers).toBe("['200', '403'] 20 403\nTrue");
    expect(new Set((await rig.farSide.call("takeHits")).map(({ address }) => address))).toEqual(
      new Set([web]),
    );
    await eventually(async () => (await agent.call("relayStats", "limited")).open === 0);
    expect(await fetch("http://web.example/", "-X GET -H 'Transfer-Encoding: chunked' -d @/etc/passwd")).toBe(
      "200",
    );
    const heard = JSON.parse(await bash("limited", "cat body"));
    expect(heard.method).toBe("GET");
    expect(heard.bytes).toBeGreaterThan(100);
  });

  test("TLS for a host that is not allowed is cut, also over a connection to one that is", async () => {
    const handshake = (name: string) =>
      bash(
        "limited",
        `python3 - <<'P' 2>&1 | tail -1
import socket, ssl
s = socket.create_connection(("127.0.0.1", 7480))
s.sendall(b"CONNECT web.example:443 HTTP/1.1\\r\\n\\r\\n")
assert s.recv(4096).startswith(b"HTTP/1.1 200"), "no tunnel"
c = ssl.create_default_context(); c.check_hostname = False; c.verify_mode = ssl.CERT_NONE
print(c.wrap_socket(s, server_hostname=${name}).version())
P`,
      );
    await rig.farSide.call("takeServerNames");
    expect(await handshake('"web.example"')).toBe("TLSv1.3");
    expect(await handshake('"evil.example"')).toMatch(/reset|EOF|closed/i);
    expect(await handshake('"a.wild.example"')).toBe("TLSv1.3");
    expect(await handshake("None")).toBe("TLSv1.3");
    // A server is done with a handshake after its client; what had come before the last one is here with it.
    const names: string[] = [];
    await eventually(async () => {
      names.push(...(await rig.farSide.call("takeServerNames")));
      return names.includes("false");
    });
    expect(names).toEqual(["web.example", "a.wild.example", "false"]);
  });

  test("each direction ends by itself: what is said after the other side is done still arrives", async () => {
    const script = (port: number, end: string) => `python3 - <<'P'
import socket
s = socket.create_connection(("127.0.0.1", 7480))
s.sendall(b"CONNECT web.example:${port} HTTP/1.1\\r\\n\\r\\n")
while not s.recv(1): pass
data = b""
while not data.endswith(b"\\r\\n\\r\\n"): data += s.recv(1)
${end}
P`;
    const afterMine =
      "s.sendall(b'x' * 3000000); s.shutdown(1)\nn = 0\nwhile True:\n  d = s.recv(65536)\n  if not d: break\n  n += len(d)\nprint(n)";
    expect(await bash("limited", script(7, afterMine))).toBe("3000000");
    const afterTheirs = "print(s.recv(100), s.recv(100)); s.sendall(b'more'); s.close(); print('sent')";
    expect(await bash("limited", script(9, afterTheirs))).toContain("sent");
    // The beginning of TLS that is never more than that.
    const cut = "s.sendall(b'\\x16\\x03'); s.shutdown(1); print(s.recv(10))";
    expect(await bash("limited", script(7, cut))).toBe("b'\\x16\\x03'");
    await eventually(async () => (await agent.call("relayStats", "limited")).open === 0);
  });

  test("refusals are counted, and logged with host, port and reason, but without paths, queries, names of users or headers", async () => {
    await fetch(
      "http://evil.example/secret-path?token=secret-query",
      "-H 'Authorization: Bearer secret-header'",
    );
    await fetch("http://web.example/secret-path?token=secret-query");
    const { denied } = await agent.call("relayStats", "limited");
    expect(denied.host_not_allowed).toBeGreaterThan(0);
    const line = '"hand":"limited","reason":"host_not_allowed","host":"evil.example","port":80';
    await eventually(() => agent.log.includes(line));
    expect(agent.log).not.toMatch(/secret-|user:pw/);
  });
});
