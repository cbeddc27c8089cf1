/** Connections of sandboxes to the proxy, from a program in a hand to a handler of the proxy: relay, agent, server, proxy. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { SandboxConnection } from "../../mcp-proxy/tunnels/sandbox-connection.ts";
import { NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { useDocker, whyNoDocker } from "../kit/docker.ts";
import { ensureNodeImage } from "../kit/docker-images.ts";
import { eventually } from "../kit/eventually.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { startServer } from "../kit/server.ts";
import { startTunnelRig, type TunnelHand, type TunnelRig } from "../kit/tunnel-rig.ts";

const MIB = 1024 * 1024;
/** What dies on the way is known at both ends by then. */
const SOON = { withinMs: 60_000 };
/** Kernels keep bytes between two programs of one machine too: three connections, each with buffers at both ends. */
const MOST_ON_THE_WAY = 24 * MIB;

/** Connects by CONNECT and says how it went; `after` is what it does with the open socket. */
function program(after: string, host = "api.example:443"): string {
  const script = `
    import { connect } from "node:net";
    import { createHash } from "node:crypto";
    const socket = connect({ port: 7480, host: "127.0.0.1", allowHalfOpen: true });
    socket.on("error", (error) => console.log("error " + error.code));
    socket.write("CONNECT ${host} HTTP/1.1\\r\\n\\r\\n");
    let head = Buffer.alloc(0);
    await new Promise((resolve) => socket.on("readable", function read() {
      for (let byte = socket.read(1); byte !== null; byte = socket.read(1)) {
        head = Buffer.concat([head, byte]);
        if (head.toString().endsWith("\\r\\n\\r\\n")) { socket.off("readable", read); return resolve(); }
      }
    }));
    const status = head.toString().split("\\r\\n")[0];
    if (!status.includes(" 200 ")) {
      const reason = /x-tendon-relay: (.*)/i.exec(head.toString())[1];
      for await (const text of socket) process.stdout.write(status + " " + reason + " " + text);
      process.exit();
    }
    ${after}`;
  return `node --input-type=module - <<'END_OF_PROGRAM'\n${script}\nEND_OF_PROGRAM`;
}

/** Tells when it stands, and then when it has ended, whichever way. A word from the other side kills it. */
const WAIT_FOR_END = `
  socket.once("close", () => console.log("closed"));
  socket.once("data", () => process.kill(process.pid, "SIGKILL"));
  socket.resume();
  socket.write("here");`;

function bytesOf(block: number): Buffer {
  return Buffer.alloc(MIB, createHash("sha256").update(String(block)).digest());
}

function hashOf(blocks: number): string {
  const hash = createHash("sha256");
  for (let block = 0; block < blocks; block++) hash.update(bytesOf(block));
  return hash.digest("hex");
}

describe.skipIf(whyNoPrivateNetwork() !== undefined)("a sandbox's connection to the proxy", () => {
  let rig: TunnelRig;
  let hand: TunnelHand;
  beforeAll(async () => {
    rig = await startTunnelRig();
    hand = await rig.newHand();
  });
  afterAll(() => rig?.stop());

  /** A connection that stands, as its program knows too; what the program prints once it has ended. */
  async function standing(from: TunnelHand = hand) {
    let stands: SandboxConnection | undefined;
    // As a server does: when the other side has ended, so does it.
    rig.handle = (connection) =>
      connection.stream
        .once("data", () => {
          stands = connection;
        })
        .once("end", () => connection.stream.end());
    const printed = from.bash(program(WAIT_FOR_END));
    printed.catch(() => {});
    const { stream } = await eventually(() => stands);
    return { printed, stream };
  }

  test("is opened for a host of a variable of its session, with what the server says of it", async () => {
    rig.handle = ({ stream }) => {
      stream.once("data", (asked) => stream.end(`you said ${asked}`));
    };
    const said = await hand.bash(
      "exec 3<>/dev/tcp/127.0.0.1/7480; printf 'CONNECT API.example:8443 HTTP/1.1\\r\\n\\r\\n' >&3; " +
        'read -r -u 3 status; read -r -u 3 empty; printf hello >&3; echo "$status"; cat <&3',
    );
    expect(said).toMatch(/^HTTP\/1.1 200 .*\r\nyou said hello$/);
    expect(rig.taken.at(-1)).toMatchObject({
      kind: "egress",
      sessionId: hand.sessionId,
      handId: hand.handId,
      workspaceId: rig.vault.home.workspaceId,
      epoch: 2,
      host: "api.example",
      port: 8443,
    });
  });

  test("carries 64 MiB exactly each way, and passes on that one side has ended while the other goes on", async () => {
    const received = createHash("sha256");
    rig.handle = ({ stream }) => {
      stream.on("data", (bytes) => received.update(bytes));
      // Only then is anything sent: the end of one direction came through alone.
      stream.once("end", async () => {
        for (let block = 0; block < 64; block++) {
          if (!stream.write(bytesOf(block))) await once(stream, "drain");
        }
        stream.end();
      });
    };
    const said = await hand.bash(
      program(`
        for (let block = 0; block < 64; block++) {
          const bytes = Buffer.alloc(${MIB}, createHash("sha256").update(String(block)).digest());
          if (!socket.write(bytes)) await new Promise((resolve) => socket.once("drain", resolve));
        }
        socket.end();
        const hash = createHash("sha256");
        for await (const bytes of socket) hash.update(bytes);
        console.log(hash.digest("hex"));`),
    );
    expect(said.trim()).toBe(hashOf(64));
    expect(received.digest("hex")).toBe(hashOf(64));
  });

  test("holds the program back when the proxy does not read, and the proxy when the program does not", async () => {
    let stream: SandboxConnection["stream"] | undefined;
    rig.handle = (connection) => {
      stream = connection.stream;
    };
    const inHand = (name: string) => join(rig.agentDataDir, "hands", hand.handId, "work", name);
    const printed = hand.bash(
      program(`
        import { existsSync, writeFileSync } from "node:fs";
        let sent = 0;
        // As much as there is room for, until it is told that this is enough.
        const isEnough = () => existsSync("enough");
        while (sent < 64 && !isEnough()) {
          const hasRoom = socket.write(Buffer.alloc(${MIB}));
          writeFileSync("sent", String((sent += 1)));
          if (hasRoom) continue;
          await new Promise((resolve) => {
            const looking = setInterval(() => isEnough() && go(), 20);
            function go() { clearInterval(looking); socket.off("drain", go); resolve(); }
            socket.once("drain", go);
          });
        }
        writeFileSync("stopped", "");
        socket.end("end");
        console.log(sent);
        let got = 0;
        for await (const bytes of socket) got += bytes.length;
        console.log(got);`),
    );
    const open = await eventually(() => stream);
    // The other way: nobody reads in the hand yet.
    let sent = 0;
    const flood = (async () => {
      for (; sent < 64; sent++) if (!open.write(Buffer.alloc(MIB))) await once(open, "drain");
    })();
    let last = "";
    await eventually(
      async () => {
        const now = `${sent} ${await readFile(inHand("sent"), "utf8")}`;
        const stands = now === last;
        last = now;
        return stands;
      },
      { everyMs: 1_500, withinMs: 60_000 },
    );
    expect(sent * MIB).toBeLessThan(MOST_ON_THE_WAY);
    // Nobody has read yet when it stops.
    await writeFile(inHand("enough"), "");
    await eventually(() => existsSync(inHand("stopped")));
    let received = 0;
    open.on("data", (bytes: Buffer) => {
      received += bytes.length;
    });
    await flood;
    open.end();
    const [wrote, got] = (await printed).trim().split("\n").map(Number);
    expect(wrote! * MIB).toBeLessThan(MOST_ON_THE_WAY);
    expect(received).toBe(wrote! * MIB + 3);
    expect(got).toBe(64 * MIB);
  });

  test("is refused with a reason: another host, no proxy, a session that is archived", async () => {
    expect(await hand.bash(program("", "other.example:443"))).toMatch(/^HTTP\/1.1 403 .* host_not_allowed /);
    await rig.proxy.stop();
    try {
      expect(await hand.bash(program(""))).toMatch(
        /^HTTP\/1.1 503 .* no_proxy api.example:443: no proxy is connected/,
      );
    } finally {
      rig.proxy = await rig.startProxyAt(rig.vault.server);
    }
    const other = await rig.newHand();
    const { stream } = await standing(other);
    await rig.vault.home.sessions.archiveSession({ sessionId: other.sessionId, interrupt: true });
    await eventually(() => stream.destroyed, SOON);
  });

  test("ends at both ends within seconds, and nothing is left, when one on the way dies", async () => {
    const isEmpty = () => rig.proxy.tunnels.size === 0;
    // The proxy: its handler's stream goes, the program hears of it.
    const first = await standing();
    await rig.proxy.stop();
    expect(await first.printed).toBe("error ECONNRESET\nclosed\n");
    rig.proxy = await rig.startProxyAt(rig.vault.server);
    // The program is killed.
    const second = await standing();
    second.stream.write("die");
    await second.printed;
    await eventually(() => second.stream.destroyed && isEmpty(), SOON);
    // The connection to the server, as when the server dies.
    const third = await standing();
    rig.agentsWay.cut();
    await eventually(() => third.stream.destroyed && isEmpty(), SOON);
    await third.printed.catch(() => {});
    await eventually(async () => {
      const metrics = await (await rig.vault.server.fetch("/metrics")).text();
      return /^tendon_open_tunnels 0$/m.test(metrics);
    }, SOON);
  });

  test("goes to a proxy of another replica, by one hop", async () => {
    const other = await startServer({ databaseUrl: rig.vault.database.url, peers: true });
    const own = rig.proxy;
    await own.stop();
    try {
      rig.proxy = await rig.startProxyAt(other);
      rig.handle = ({ stream }) => stream.pipe(stream);
      const said = await eventually(
        async () => {
          const text = await hand.bash(
            program(
              `socket.end("over there"); for await (const bytes of socket) process.stdout.write(bytes);`,
            ),
          );
          return text === "over there" && text;
        },
        { withinMs: 60_000, everyMs: 500 },
      );
      expect(said).toBe("over there");
      const { printed, stream } = await standing();
      await other.stop();
      await eventually(() => stream.destroyed, { withinMs: 60_000 });
      expect(await printed).toBe("error ECONNRESET\nclosed\n");
    } finally {
      await rig.proxy.stop();
      await other.stop();
      rig.proxy = await rig.startProxyAt(rig.vault.server);
    }
  });

  test("ends when its hand is passed on to another session (H6)", async () => {
    const given = await rig.newHand();
    const next = await rig.vault.home.newSession([]);
    // A process that the call leaves behind has the connection.
    const before = rig.taken.length;
    rig.handle = ({ stream }) => stream.resume();
    await given.bash(`( ${program(WAIT_FOR_END)}\n) >left 2>&1 &`);
    const { stream } = await eventually(() => rig.taken[before]);
    await rig.vault.server
      .client(HandService, rig.vault.home.key)
      .handOver({ requestId: "pass-on", handId: given.handId, toSessionId: next });
    await eventually(() => stream.destroyed, SOON);
  });

  test("is there in limited networks too, beside what the environment names", async () => {
    const limited = await rig.newHand({
      environment: { network: { mode: NetworkMode.LIMITED, allowedHosts: ["web.example"] } },
    });
    rig.handle = ({ stream }) => stream.end("from the proxy");
    expect(
      await limited.bash(
        program(
          `socket.end(); for await (const bytes of socket) process.stdout.write(bytes);`,
          "a.wild.example:443",
        ),
      ),
    ).toBe("from the proxy");
    expect(await limited.bash(program("", "evil.example:443"))).toMatch(/ host_not_allowed /);
  });

  test.skipIf(whyNoDocker() !== undefined)("is there in a container with the network none", async () => {
    const engine = await useDocker();
    const inContainers = await startTunnelRig({ DOCKER_HOST: engine.host });
    try {
      const image = await ensureNodeImage(engine);
      const contained = await inContainers.newHand({
        environment: { driver: "docker", image, network: { mode: NetworkMode.NONE } },
      });
      inContainers.handle = ({ stream }) => stream.pipe(stream);
      const echo = `socket.end("from a container"); for await (const bytes of socket) process.stdout.write(bytes);`;
      expect(await contained.bash(program(echo))).toBe("from a container");
      const host = (await contained.bash("cat /proc/sys/kernel/hostname")).trim();
      await inContainers.vault.home.sessions.archiveSession({
        sessionId: contained.sessionId,
        interrupt: true,
      });
      const all = () => engine.docker("ps", "-a", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.Labels}}");
      expect(host).not.toBe("");
      await eventually(async () => !(await all()).includes(host), { withinMs: 60_000 });
    } finally {
      await inContainers.stop();
      await engine.release();
    }
  });

  test("are not made for variables while no proxy puts these in: such a hand is what its environment says", async () => {
    const plain = await startTunnelRig({}, { servesVariables: false });
    try {
      const made = await plain.newHand();
      const look = `require("node:net").connect(7480, "127.0.0.1").on("error", (error) => console.log(error.code)).on("connect", () => console.log("a relay"))`;
      expect((await made.bash(`${process.execPath} -e '${look}'`)).trim()).toBe("ECONNREFUSED");
    } finally {
      await plain.stop();
    }
  });
});
