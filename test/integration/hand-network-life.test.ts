/** How a hand's way out lives and ends: its bounds, its log, its agent's and its sandbox's deaths, and where there can be none. */
import { execFileSync } from "node:child_process";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import type { CalledProcess } from "../kit/called-process.ts";
import { eventually } from "../kit/eventually.ts";
import { type NetworkHands, RECORDS, startNetworkHands } from "../kit/network-hands.ts";
import { NetworkRig, WORLD } from "../kit/network-rig.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import type { NetworkAgent } from "./fixtures/network-agent.mts";

const { web } = WORLD;
const why = whyNoPrivateNetwork();
let rig: NetworkRig;

beforeAll(async () => {
  if (why === undefined) rig = await NetworkRig.start();
});
afterAll(() => rig?.remove());

describe.skipIf(why !== undefined)("a hand's way out", () => {
  let agent: NetworkHands["agent"];
  let bash: NetworkHands["bash"];
  let fetch: NetworkHands["fetch"];

  beforeAll(async () => {
    ({ agent, bash, fetch } = await startNetworkHands(rig));
    await agent.call("listenLocally", "0.0.0.0", 8080);
  });
  beforeEach(() => rig.farSide.call("setRecords", RECORDS));

  test("readers that do not read hold little of the agent's memory and delay nobody", async () => {
    const before = await agent.call("rssMb");
    await bash(
      "limited",
      `for i in $(seq 20); do
  python3 -c "
import socket, time
s = socket.create_connection(('127.0.0.1', 7480)); s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
s.sendall(b'GET http://web.example/endless HTTP/1.1\\r\\nHost: web.example\\r\\n\\r\\n'); time.sleep(600)" & done; true`,
    );
    await eventually(async () => (await agent.call("relayStats", "limited")).open >= 20, {
      withinMs: 60_000,
    });
    expect(await fetch("http://web.example/")).toBe("200");
    let seen = -1;
    // Nothing flows any more: every buffer on the way is full.
    await eventually(
      async () => {
        const { bytesIn } = await agent.call("relayStats", "limited");
        const isStill = bytesIn === seen;
        seen = bytesIn;
        return isStill;
      },
      { everyMs: 500 },
    );
    const heldMb = (await agent.call("rssMb")) - before;
    // Whatever comes of this one, the next begin without its readers.
    await bash("limited", "pkill -f endless; true");
    await eventually(async () => (await agent.call("relayStats", "limited")).open === 0);
    // Held without a bound it would be as much in a second, and a gigabyte soon.
    expect(heldMb).toBeLessThan(150);
  });

  test("200 connections at a time work; beyond 256 a hand is told that it has too many", async () => {
    const many = (count: number) =>
      bash(
        "limited",
        `python3 - <<'P'
import concurrent.futures as f, socket, threading
gate = threading.Barrier(${count})
def one(_):
    s = socket.create_connection(("127.0.0.1", 7480)); s.settimeout(30)
    gate.wait(60)
    try:
        s.sendall(b"CONNECT web.example:7 HTTP/1.1\\r\\n\\r\\n")
        head = s.recv(4096).split(b" ")[1:2]
        gate.wait(60)
        if head == [b"200"]:
            s.sendall(b"hello"); s.shutdown(1); assert s.recv(100) == b"hello"
        return (head or [b"closed"])[0]
    except OSError as e: 
        gate.wait(60)
        return b"closed"
with f.ThreadPoolExecutor(${count}) as p: got = list(p.map(one, range(${count})))
print(got.count(b"200"), len(got) - got.count(b"200") - got.count(b"503") - got.count(b"closed"))
P`,
      );
    expect(await many(200)).toBe("200 0");
    await eventually(async () => (await agent.call("relayStats", "limited")).open === 0);
    expect(await many(300)).toBe("256 0");
    await eventually(async () => (await agent.call("relayStats", "limited")).open === 0);
    expect((await agent.call("relayStats", "limited")).denied.too_many_connections).toBe(44);
  });

  test("a program that is refused for ever does not fill the log", async () => {
    const lines = () => agent.log.split('"reason"').length;
    const before = lines();
    await bash(
      "limited",
      "curl -s -o /dev/null --parallel --parallel-max 8 'http://evil.example/[1-300]'; true",
    );
    expect((await agent.call("relayStats", "limited")).denied.host_not_allowed).toBeGreaterThanOrEqual(300);
    expect(lines() - before).toBeLessThanOrEqual(40);
  });

  test("the agent opens no port in its own network, and leaves no process in the hand's", async () => {
    const inAgentsNetwork = execFileSync("ip", [...rig.network.atAgent.slice(1), "ss", "-Hltn"], {
      encoding: "utf8",
    });
    expect(
      inAgentsNetwork
        .trim()
        .split("\n")
        .filter((line) => !line.includes(":8080")),
    ).toEqual([]);
    expect(await bash("limited", "ss -Hltn | awk '{print $4}' | sort | tr '\\n' ' '")).toBe(
      "127.0.0.1:7480 [::1]:7480 ",
    );
    expect(await bash("limited", "ls -d /proc/[0-9]* | wc -l")).toMatch(/^[1-7]$/);
    // Other agents of this machine may just be making a hand.
    const own = rig.commands();
    expect(own.length).toBeGreaterThan(0);
    expect(own.filter((command) => command.includes("listen-inside"))).toEqual([]);
  });

  test("destroying a hand ends its connections and its way out (X4)", async () => {
    await agent.call("provision", "ended", { mode: "limited", allowedHosts: ["web.example"] });
    await bash("limited", "true");
    await agent.call("bash", "ended", "curl -sN http://web.example/silent >/dev/null & sleep 0.1; true");
    await eventually(async () => (await rig.farSide.call("openConnections")) === 1);
    await agent.call("destroy", "ended");
    await eventually(async () => (await rig.farSide.call("openConnections")) === 0);
    await eventually(async () => (await agent.call("relayStats", "ended")).open === 0);
  });

  test("a sandbox that ended by itself is started again with its way out", async () => {
    await agent.call("provision", "again", { mode: "limited", allowedHosts: ["web.example"] });
    const status = () =>
      agent
        .call("bash", "again", "curl -s -m 10 -o /dev/null -w '%{http_code}' http://web.example/; true")
        .catch(String);
    expect(await status()).toBe("200");
    await agent.call("bash", "again", "kill -9 -1; true").catch(() => {});
    await eventually(async () => (await status()) === "200", { withinMs: 60_000 });
    await agent.call("destroy", "again");
  });
});

describe.skipIf(why !== undefined)("a hand's way out, in other circumstances", () => {
  const allowedHosts = ["web.example", "*.wild.example", "refused.wild.example", WORLD.private];
  const status = (agent: CalledProcess<NetworkAgent>, url: string, options = "") =>
    agent.call(
      "bash",
      "hand",
      `curl -sk -m 15 -o body -w '%{http_code}' ${options} ${url} || echo " $?"; true`,
    );

  beforeEach(() => rig.farSide.call("setRecords", RECORDS));

  test.each([
    ["namespaces, as root", "namespaces", []],
    [
      "bubblewrap, as another user",
      "bubblewrap",
      ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
    ],
    [
      "namespaces, as another user",
      "namespaces",
      ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"],
    ],
  ] as const)("it is the same by %s", async (_name, isolation, as) => {
    const dataDir = rig.dataDir(as.length > 0 ? 65_534 : 0);
    const agent = await rig.agent({ isolation, dataDir }, as);
    expect(await agent.call("probe")).toEqual({ available: true });
    await agent.call("provision", "hand", { mode: "limited", allowedHosts });
    await rig.farSide.call("takeHits");
    expect(await status(agent, "http://web.example/")).toBe("200");
    expect(await status(agent, "https://a.wild.example/")).toBe("200");
    expect(await status(agent, "http://evil.example/")).toBe("403");
    expect(await status(agent, `http://${web}/`, "--noproxy '*' -m 5")).toBe("000 7");
    expect((await rig.farSide.call("takeHits")).map(({ address }) => address)).toEqual([web, web]);
    expect(
      await agent.call("bash", "hand", "grep -E 'Cap(Prm|Eff)' /proc/self/status | tr -d '0\\n\\t'"),
    ).toBe("CapPrm:CapEff:");
    await agent.call("destroy", "hand");
    await agent.call("provision", "hand", { mode: "none" });
    expect(await status(agent, `http://${web}/`, "-m 5")).toBe("000 7");
    await agent.call("destroy", "hand");
  });

  test("the proxy of the agent's network is used by name, with its user, and what it refuses is told", async () => {
    const { serverAddress } = rig.network;
    const agent = await rig.agent({ httpsProxy: `http://agent:pass-of-proxy@${serverAddress}:3128` });
    await agent.call("provision", "hand", { mode: "limited", allowedHosts });
    await rig.farSide.call("setRecords", {}); // this network resolves nothing by itself
    await rig.farSide.call("takeProxied");
    expect(await status(agent, "https://a.wild.example/")).toBe("200");
    expect(await status(agent, "http://web.example/")).toBe("200");
    const user = `Basic ${Buffer.from("agent:pass-of-proxy").toString("base64")}`;
    expect(await rig.farSide.call("takeProxied")).toEqual([
      `a.wild.example:443 ${user}`,
      `web.example:80 ${user}`,
    ]);
    expect(await status(agent, "http://evil.example/")).toBe("403");
    expect(await status(agent, "http://127.0.0.1/", "--noproxy none")).toBe("403");
    expect(await status(agent, `http://${web}/`)).toBe("403");
    expect(await rig.farSide.call("takeProxied")).toEqual([]);
    expect(await status(agent, "http://refused.wild.example/")).toBe("502");
    expect(await agent.call("bash", "hand", "cat body")).toMatch(
      /the proxy of the hand agent's network did not connect to refused\.wild\.example:80: status 407/,
    );
    expect(await agent.call("bash", "hand", "cat body; env")).not.toContain("pass-of-proxy");
    expect(agent.log).not.toContain("pass-of-proxy");
    expect(await rig.farSide.call("asked")).toEqual([]);
    await agent.kill();
  });

  test("connections that stand still are ended: without a request, without a byte, with one side done", async () => {
    const NEVER_MS = 3_600_000;
    const until = (agent: CalledProcess<NetworkAgent>, request: string) =>
      agent
        .call(
          "bash",
          "hand",
          `python3 - <<'P'
import socket, time
s = socket.create_connection(("127.0.0.1", 7480)); s.settimeout(60); start = time.time()
s.sendall(${request})
try:
    while s.recv(65536): pass
except ConnectionError: pass
print("ended", round(time.time() - start, 1))
P`,
        )
        .then((text) => Number(/^ended ([\d.]+)$/.exec(text)?.[1] ?? text));
    const idle = await rig.agent({ limits: { requestMs: NEVER_MS, idleMs: 1_500, halfOpenMs: NEVER_MS } });
    await idle.call("provision", "hand", { mode: "limited", allowedHosts });
    expect(await until(idle, 'b"CONNECT web.example:7 HTTP/1.1\\r\\n\\r\\n"')).toBeGreaterThanOrEqual(1.4);
    await idle.kill();
    const agent = await rig.agent({ limits: { requestMs: 1_500, idleMs: NEVER_MS, halfOpenMs: 1_500 } });
    await agent.call("provision", "hand", { mode: "limited", allowedHosts });
    expect(await until(agent, 'b"GET http://web"')).toBeGreaterThanOrEqual(1.4);
    // Port 9 says at once that it is done; this side says nothing.
    const stats = () => agent.call("relayStats", "hand");
    const { accepted } = await stats();
    await agent.call(
      "bash",
      "hand",
      `python3 -c 'import socket, time
s = socket.create_connection(("127.0.0.1", 7480)); s.sendall(b"CONNECT web.example:9 HTTP/1.1\\r\\n\\r\\n"); time.sleep(600)' & true`,
    );
    // However soon that was: there was one, and it is over, although its program is still there.
    await eventually(async () => (await stats()).accepted > accepted);
    await eventually(async () => (await stats()).open === 0);
    await agent.kill();
  });

  test("an agent that was killed takes its hand up again with the same network, and no more", async () => {
    const first = await rig.agent();
    await first.call("provision", "hand", { mode: "limited", allowedHosts });
    expect(await status(first, "http://web.example/")).toBe("200");
    await first.kill();
    const second = await rig.agent({ dataDir: first.dataDir });
    await second.call("recover", "hand");
    expect(await status(second, "http://web.example/")).toBe("200");
    expect(await status(second, "http://evil.example/")).toBe("403");
    expect(await status(second, `http://${web}/`, "--noproxy '*' -m 5")).toBe("000 7");
    await second.call("destroy", "hand");
    await second.kill();
  });

  test("a hand that cannot be kept from the network is not made, and the reason is said", async () => {
    for (const isolation of ["uid", "none"] as const) {
      const agent = await rig.agent({ isolation });
      for (const mode of ["none", "limited"] as const) {
        await expect(agent.call("provision", "hand", { mode, allowedHosts: [] })).rejects.toThrow(
          `the process driver cannot keep hands from the network with the isolation "${isolation}"; install bubblewrap`,
        );
      }
      await agent.call("provision", "hand", { mode: "unrestricted" });
      expect(await status(agent, `http://${web}/`)).toBe("200");
      await agent.call("destroy", "hand");
      await agent.kill();
    }
    const agent = await rig.agent({ program: "/nowhere/agent.mjs" });
    await expect(agent.call("provision", "hand", { mode: "limited", allowedHosts })).rejects.toThrow(
      /^the network cannot be limited: .*\/nowhere\/agent\.mjs/s,
    );
    await expect(
      agent.call("provision", "hand", { mode: "limited", allowedHosts: ["web.example", "1.2.3"] }),
    ).rejects.toThrow('allowed_hosts: "1.2.3" is no host name, *.domain or IP address');
    expect(await agent.call("handIds")).toEqual([]);
    await agent.kill();
  });

  test("the agent never listens in its own network: a hand that shares it is refused, as is what is no network", async () => {
    const agent = await rig.agent();
    const { pid } = agent.process;
    for (const [namespace, reason] of [
      [{ pid: pid! }, "the hand shares the network of its host"],
      [{ path: "/proc/self/ns/net" }, "the hand shares the network of its host"],
      [{ path: "/etc/hostname" }, "what was given as the hand's network namespace is none"],
      [{ path: "/nowhere/net" }, "cannot be opened (ENOENT)"],
    ] as const) {
      await expect(agent.call("startAt", namespace, allowedHosts)).rejects.toThrow(reason);
    }
    await agent.kill();
  });

  test("a namespace is also found by its file, as container engines keep it", async () => {
    const agent = await rig.agent();
    const path = rig.network.emptyNetwork();
    await agent.call("startAt", { path }, allowedHosts);
    const curl = (url: string) =>
      execFileSync(
        "nsenter",
        [
          `--net=${path}`,
          "curl",
          "-s",
          "-m",
          "10",
          "-o",
          "/dev/null",
          "-w",
          "%{http_code}",
          "-x",
          "http://127.0.0.1:7480",
          url,
        ],
        { encoding: "utf8" },
      );
    expect(curl("http://web.example/")).toBe("200");
    expect(curl("http://evil.example/")).toBe("403");
    await expect(agent.call("startAt", { path }, allowedHosts)).rejects.toThrow(
      "another program in the hand has taken the relay's port",
    );
    await agent.kill();
  });
});
