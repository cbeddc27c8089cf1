/** What a hand in a container can read, reach and do, seen from inside: nothing here is believed because it was configured. */
import { execFile, execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { type AddressInfo, createServer, type Server } from "node:net";
import { promisify } from "node:util";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { blockMetadata } from "../../hand-agent/drivers/docker/network-rules.ts";
import type { Hand } from "../../hand-agent/drivers/driver.ts";
import { systemClock } from "../../kit/clock.ts";
import { whyNoDocker } from "../kit/docker.ts";
import { DockerRig } from "../kit/docker-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { promised } from "../kit/promised.ts";
import { type ToolCaller, textOf, toolCaller } from "../kit/tool-caller.ts";

const MIB = 1024 * 1024;
/** A machine beyond the bridge, with an address that answers and a link-local one. */
const WORLD = {
  name: `tendon-w${process.pid}`,
  near: "10.79.1.1",
  far: "10.79.1.2",
  linkLocal: "169.254.77.1",
};
const PORT = 8077;

describe.skipIf(whyNoDocker() !== undefined)("a docker hand, from inside", () => {
  let rig: DockerRig;
  beforeAll(async () => {
    rig = await DockerRig.start();
  });
  afterAll(() => rig?.stop());

  async function withHand(
    spec: Parameters<DockerRig["provision"]>[1],
    use: (parts: {
      hand: Hand;
      call: ToolCaller;
      say: (command: string) => Promise<string>;
    }) => Promise<void>,
  ): Promise<void> {
    const hand = await rig.provision(`hand_inside${process.hrtime.bigint()}`, spec);
    const call = toolCaller(hand);
    try {
      await use({ hand, call, say: async (command) => textOf(await call.bash(command)) });
    } finally {
      await hand.destroy();
    }
  }

  it("is a user without any privilege, on a root that cannot be written to", () =>
    withHand({}, async ({ hand, say }) => {
      const status = await say("grep -E '^(Uid|Gid|Cap...|NoNewPrivs|Seccomp):' /proc/self/status");
      const fields = new Map(status.split("\n").map((line) => line.split(/:\s+/) as [string, string]));
      expect(fields.get("Uid")).toMatch(/^(\d{5})\t\1\t\1\t\1$/);
      expect(fields.get("Gid")).toMatch(/^(\d{5})\t\1\t\1\t\1$/);
      for (const set of ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"])
        expect(fields.get(set)).toBe("0000000000000000");
      expect([fields.get("NoNewPrivs"), fields.get("Seccomp")]).toEqual(["1", "2"]);
      // Also the first process and the lanes. One that is being opened is the engine's, until that has given up its rights.
      const kinds = () => say("cat /proc/[0-9]*/status | grep -E '^CapEff|^Uid' | sort -u | wc -l");
      await eventually(async () => (await kinds()) === "2");
      for (const path of [
        "/x",
        "/etc/x",
        "/bin/x",
        "/usr/x",
        "/run/x",
        "/hand/x",
        "/proc/sys/kernel/hostname",
      ])
        expect(await say(`{ echo x >${path}; } 2>&1`)).toMatch(
          /Read-only|Permission denied|nonexistent|No such/,
        );
      expect(await say("touch ok /tmp/ok && echo wrote; cp /bin/true /tmp/t && /tmp/t && echo ran")).toBe(
        "wrote\nran",
      );
      expect(await say("mkdir m; mount -t tmpfs x m 2>&1 || unshare -U true 2>&1; echo")).toMatch(
        /not|denied/,
      );
      expect(hand.isolation).toMatch(/^docker/);
    }));

  it("sees nothing of the machine, of its engine, of other hands, and none of the agent's variables", async () => {
    process.env.TENDON_TEST_CANARY = "canary-of-the-agent";
    const other = await rig.provision("hand_other");
    await other.writeFile(`${other.workdir}/secret`, Buffer.from("of the other hand"));
    await other.exec({ argv: ["sleep", "77777"] });
    try {
      await withHand({}, async ({ say }) => {
        expect(await say("ls /var/run/docker.sock /run/docker.sock 2>&1")).toMatch(
          /No such file.*\n?.*No such file/,
        );
        expect(await say("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).not.toMatch(/77777|dockerd|vitest/);
        expect(await say("cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'")).not.toMatch(
          /canary|DOCKER_HOST/,
        );
        expect(await say("find / -name secret -not -path '/proc/*' 2>/dev/null; ls /hand/work")).toBe(
          "(no output)",
        );
        expect(await say("ls /hand")).toBe("outputs\nwork");
        expect(await say("ls /dev | grep -E '^(sd|vd|nvme|kmsg|mem|kvm)'")).toBe("exit 1");
        expect(await say("hostname")).toMatch(/^[0-9a-f]{12}$/);
      });
    } finally {
      delete process.env.TENDON_TEST_CANARY;
      await other.destroy();
    }
  });

  it("keeps memory, processes, processors and temporary files within their limits", () =>
    withHand(
      { limits: { memoryBytes: 96 * MIB, processes: 48, cpus: 0.5, tmpBytes: 8 * MIB } },
      async ({ call, say }) => {
        const hungry = await call.bash(
          "node -e 'const a=[]; for(;;) a.push(Buffer.alloc(1<<22, 1))'; echo over $?",
        );
        expect(textOf(hungry)).toMatch(/over 137|container has ended/);
        const full = await say(
          "head -c 16777216 /dev/zero >/tmp/big; echo $?; stat -c %s /tmp/big; rm /tmp/big",
        );
        expect(full).toMatch(/No space left on device[\s\S]*\n8388608$/);
        // Not in bash, which tries for a quarter of a minute.
        const many = "i=0; while [ $i -lt 60 ]; do sleep 100 >/dev/null 2>&1 & i=$((i+1)); done";
        expect(await say(`sh -c '${many}' 2>&1; echo $?`)).toMatch(/fork[\s\S]*\n2$/);
        const quota = "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null";
        expect(await say(quota)).toMatch(/^50000\b/);
      },
    ));

  it("ends a call that has used up its processes within 3 s, and goes on (X4)", () =>
    withHand({ limits: { processes: 40 } }, async ({ call, say }) => {
      await say("echo kept >kept");
      const began = performance.now();
      const bomb = await call.bash("b() { b | b & }; b; while :; do sleep 1; done", {
        input: { timeout_ms: 1_000 },
      });
      expect(performance.now() - began).toBeLessThan(promised(4_000));
      expect(bomb).toMatchObject({ isError: true, outcome: "timed_out" });
      expect(await say("cat kept")).toBe("kept");
    }));

  describe("with the network none", () => {
    it("has loopback alone: no address, no name, no port of the machine, no metadata", () =>
      withHand({}, async ({ say }) => {
        expect(await say("ls /sys/class/net")).toBe("lo");
        expect(await say(`cat /proc/net/if_inet6 | grep -v ' lo$'; cat /proc/net/route | wc -l`)).toBe("1");
        const server = createServer((socket) => socket.end("reached")).listen(0, "127.0.0.1");
        await once(server, "listening");
        const { port } = server.address() as { port: number };
        for (const host of [
          "127.0.0.1",
          "172.17.0.1",
          "host.docker.internal",
          "169.254.169.254",
          "fd00:ec2::254",
          "::1",
        ])
          expect(await say(reach(host, port))).not.toBe("reached");
        expect(
          await say(`node -e "require('dns').lookup('example.com', (e) => console.log(e?.code))"`),
        ).toMatch(/EAI_AGAIN|ENOTFOUND/);
        server.close();
      }));
  });

  describe("with the network unrestricted", () => {
    const ip = (...args: string[]) => execFileSync("ip", args, { stdio: "pipe" });
    let server: ReturnType<typeof spawn>;
    beforeAll(async () => {
      const { name, near, far, linkLocal } = WORLD;
      const [outer, inner] = [`${name}o`.slice(-15), `${name}i`.slice(-15)];
      ip("netns", "add", name);
      ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name);
      ip("addr", "add", `${near}/24`, "dev", outer);
      ip("link", "set", outer, "up");
      ip("-n", name, "addr", "add", `${far}/24`, "dev", inner);
      ip("-n", name, "addr", "add", `${linkLocal}/32`, "dev", inner);
      ip("-n", name, "link", "set", inner, "up");
      ip("-n", name, "route", "add", "default", "via", near);
      ip("route", "add", `${linkLocal}/32`, "via", far);
      const listen = `require("net").createServer((s) => s.end("reached")).listen(${PORT}, "0.0.0.0", () => console.log("up"))`;
      server = spawn("ip", ["netns", "exec", name, process.execPath, "-e", listen], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      await once(server.stdout!, "data");
    });
    afterAll(async () => {
      server?.kill("SIGKILL");
      ip("netns", "del", WORLD.name);
      await eventually(() => !execFileSync("ip", ["link"]).toString().includes(`${WORLD.name}o`.slice(-15)));
    });

    it("reaches other machines, but no metadata, no link-local address and not its own machine", () =>
      withHand({ network: { mode: "unrestricted" } }, async ({ say }) => {
        expect(await say(reach(WORLD.far, PORT))).toBe("reached");
        // The machine itself gets there; only the hand does not.
        expect(
          execFileSync(process.execPath, ["-e", script(WORLD.linkLocal, PORT)])
            .toString()
            .trim(),
        ).toBe("reached");
        expect(await say(reach(WORLD.linkLocal, PORT))).toBe("ECONNREFUSED");
        expect(await say(reach("169.254.169.254", 80))).toBe("ECONNREFUSED");
        for (const address of ["fd00:ec2::254", "fe80::1%eth0"])
          expect(await say(reach(address, 80))).toMatch(
            /ECONNREFUSED|ENETUNREACH|EADDRNOTAVAIL|EHOSTUNREACH|EACCES/,
          );
        const gateway = await say(
          `node -e "const h=require('fs').readFileSync('/proc/net/route','latin1').split('\\n')[1].split('\\t')[2];console.log(h.match(/../g).reverse().map((x)=>parseInt(x,16)).join('.'))"`,
        );
        const local = createServer((socket) => socket.end("reached")).listen(0, gateway);
        await once(local, "listening");
        const { port } = local.address() as { port: number };
        expect(await say(reach(gateway, port))).toBe("ECONNREFUSED");
        expect(await say(reach(WORLD.near, port))).toBe("ECONNREFUSED");
        local.close();
        expect(await say("iptables -F 2>&1; nsenter -V 2>&1; echo")).not.toMatch(/reached/);
      }));

    it("reaches its machine by no address: not by an idle bridge's, not by one of a network made later", async () => {
      const idle = `${WORLD.name}b`.slice(-15);
      ip("link", "add", idle, "type", "bridge");
      ip("addr", "add", "10.78.1.1/24", "dev", idle);
      ip("link", "set", idle, "up");
      const later = `${WORLD.name}-later`;
      const servers: Server[] = [];
      let bridge = "";
      const rules = () => execFileSync("iptables", ["--wait", "-t", "raw", "-S", "PREROUTING"]).toString();
      const listenOn = async (address: string) => {
        const server = createServer((socket) => socket.end("reached")).listen(0, address);
        servers.push(server);
        await once(server, "listening");
        return (server.address() as AddressInfo).port;
      };
      try {
        await withHand({ network: { mode: "unrestricted" } }, async ({ say }) => {
          const own = await rig.engine.docker("network", "inspect", `tendon-${await rig.agentId()}`);
          bridge = `br-${(JSON.parse(own) as { Id: string }[])[0]?.Id.slice(0, 12)}`;
          expect(rules()).toContain(`-i ${bridge} `);
          expect(await say(reach("10.78.1.1", await listenOn("10.78.1.1")))).toBe("ECONNREFUSED");
          await rig.engine.docker("network", "create", later);
          const format = "{{(index .IPAM.Config 0).Gateway}}";
          const gateway = (await rig.engine.docker("network", "inspect", "--format", format, later)).trim();
          const port = await listenOn(gateway);
          const { stdout } = await promisify(execFile)(process.execPath, ["-e", script(gateway, port)]);
          expect(stdout).toBe("reached\n");
          expect(await say(reach(gateway, port, 1_500))).toBe("timed out");
          expect(await say(reach(WORLD.far, PORT))).toBe("reached");
        });
        await rig.driver.close();
        expect(rules()).not.toContain(bridge);
      } finally {
        for (const server of servers) server.close();
        await rig.engine.docker("network", "rm", later).catch(() => {});
        ip("link", "del", idle);
      }
    });

    it("has the rules for IPv6 too, and a hand does not reach another one", () =>
      withHand({ network: { mode: "unrestricted" } }, async (a) => {
        await withHand({ network: { mode: "unrestricted" } }, async (b) => {
          await a.say(
            `node -e 'require("net").createServer((s) => s.end("reached")).listen(9001)' >/dev/null 2>&1 &`,
          );
          expect(
            await a.say(`until [ "$(${reach("127.0.0.1", 9001)})" = reached ]; do :; done; echo up`),
          ).toBe("up");
          const address = `node -e "console.log(require('os').networkInterfaces().eth0[0].address)"`;
          expect(await b.say(reach(await a.say(address), 9001, 1_500))).toMatch(
            /timed out|EHOSTUNREACH|ECONNREFUSED/,
          );
        });
        const [id = ""] = (await rig.engine.docker("ps", "--quiet", "--filter", `name=${a.hand.id}`)).split(
          "\n",
        );
        const pid = (await rig.engine.docker("inspect", "--format", "{{.State.Pid}}", id)).trim();
        const rules = execFileSync("nsenter", [
          `--net=/proc/${pid}/ns/net`,
          "ip6tables",
          "--wait",
          "-S",
        ]).toString();
        for (const address of ["fd00:ec2::254/128", "fe80::/10"])
          expect(rules).toContain(`-d ${address} -j REJECT`);
      }));

    it("is refused where its rules would not hold, with the reason", async () => {
      const refused = rig.provision("hand_vm", {
        network: { mode: "unrestricted" },
        container: { runtime: "runsc" },
      });
      await expect(refused).rejects.toThrow(/unrestricted is not kept by the runtime runsc/);
      const foreign = blockMetadata({
        pid: process.pid,
        mark: "TENDON_UNIT=x",
        gateways: [],
        clock: systemClock,
      });
      await expect(foreign).rejects.toThrow(/the engine runs on another machine/);
      const gone = blockMetadata({
        pid: 2 ** 22 + 1,
        mark: "TENDON_UNIT=x",
        gateways: [],
        clock: systemClock,
      });
      await expect(gone).rejects.toThrow(/cannot look at the container's process/);
    });
  });
});

function script(host: string, port: number, withinMs = 60_000): string {
  return `const s=require("net").connect({host:"${host}",port:${port},timeout:${withinMs}});let t="";s.on("data",(d)=>t+=d);s.on("end",()=>console.log(t));s.on("timeout",()=>{console.log("timed out");s.destroy()});s.on("error",(e)=>console.log(e.code))`;
}

/** Says what a connection brings, or why there is none. Where nothing answers at all, `withinMs` need not be long. */
function reach(host: string, port: number, withinMs?: number): string {
  return `node -e '${script(host, port, withinMs)}'`;
}
