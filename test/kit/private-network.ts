/**
 * A server's network and a customer's private one, with a router between them that lets connections out and none in, as
 * network namespaces of this machine. The router can lose packets without a word.
 *
 *   agent 10.77.1.2 ── router (masquerades, no way in) ── server 10.77.2.2
 *
 * Nothing is changed outside the namespaces. A test reaches the server through a door: a port of 127.0.0.1 here, a unix
 * socket, and a process inside.
 */
import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import net, { type AddressInfo, type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { eventually } from "./eventually.ts";

const SERVER = "10.77.2.2";
const AGENT = "10.77.1.2";
const WORLD_V6 = "fd77::";

/** Why there can be none on this machine; undefined when there can. */
export function whyNoPrivateNetwork(): string | undefined {
  if (process.getuid?.() !== 0) return "namespaces need root";
  for (const [tool, flag] of [
    ["ip", "-V"],
    ["nft", "-v"],
  ] as const) {
    try {
      execFileSync(tool, [flag], { stdio: "ignore" });
    } catch {
      return `there is no ${tool}`;
    }
  }
  return undefined;
}

export class PrivateNetwork {
  readonly serverAddress = SERVER;
  readonly agentAddress = AGENT;
  private readonly server: string;
  private readonly router: string;
  private readonly agent: string;
  private readonly undos: (() => Promise<void> | void)[] = [];

  constructor() {
    const mark = `tendon-${process.pid}`;
    [this.server, this.router, this.agent] = [`${mark}-server`, `${mark}-router`, `${mark}-agent`];
    try {
      for (const name of [this.server, this.router, this.agent]) {
        run("ip", "netns", "add", name);
        this.undos.push(() => void run("ip", "netns", "del", name));
        run("ip", "-n", name, "link", "set", "lo", "up");
      }
      this.wire(this.agent, AGENT, "inside", "10.77.1.1");
      this.wire(this.server, SERVER, "outside", "10.77.2.1");
      run("ip", "netns", "exec", this.router, "sysctl", "-qw", "net.ipv4.ip_forward=1");
      this.rules(`
        table ip private {
          chain lost { type filter hook forward priority -10; policy accept; }
          chain forward {
            type filter hook forward priority 0; policy drop;
            ct state established,related accept
            iifname "inside" oifname "outside" accept
          }
          chain out { type nat hook postrouting priority 100; oifname "outside" masquerade; }
        }`);
    } catch (error) {
      this.removeNow();
      throw error;
    }
  }

  /** Runs the command behind it in the server's network. */
  get atServer(): string[] {
    return ["ip", "netns", "exec", this.server];
  }

  /** Runs the command behind it in the private network. */
  get atAgent(): string[] {
    return ["ip", "netns", "exec", this.agent];
  }

  /** The server's side answers at these addresses too: all of the world that there is, IPv4 and IPv6. */
  addWorld(addresses: readonly string[]): void {
    if (addresses.some((address) => address.includes(":"))) this.wireIpv6();
    for (const address of addresses) {
      const bits = address.includes(":") ? 128 : 32;
      const gateway = address.includes(":") ? `${WORLD_V6}2:2` : SERVER;
      run("ip", "-n", this.server, "addr", "add", `${address}/${bits}`, "dev", "lo");
      run("ip", "-n", this.router, "route", "add", `${address}/${bits}`, "via", gateway);
    }
  }

  /** The file of one more network, which leads nowhere and has loopback alone. */
  emptyNetwork(): string {
    const name = `${this.agent}-empty`;
    run("ip", "netns", "add", name);
    this.undos.push(() => void run("ip", "netns", "del", name));
    run("ip", "-n", name, "link", "set", "lo", "up");
    return `/run/netns/${name}`;
  }

  /** From now on every packet between the two is lost. */
  loseEverything(): void {
    this.rules("add rule ip private lost drop");
  }

  /** Only what belongs to connections from these ports of the agent is lost. */
  losePorts(ports: readonly number[]): void {
    for (const port of ports) {
      this.rules(`add rule ip private lost tcp sport ${port} ip saddr ${AGENT} drop`);
      this.rules(`add rule ip private lost tcp dport ${port} ip daddr ${AGENT} drop`);
    }
  }

  loseNothing(): void {
    this.rules("flush chain ip private lost");
  }

  /** Ports of the agent's connections to the server, as its kernel sees them. */
  agentPorts(): number[] {
    return run(...this.atAgent, "ss", "-Htn", "state", "established", "dst", SERVER)
      .split("\n")
      .flatMap((line) => {
        const port = /:(\d+)\s+\S+:\d+\s*$/.exec(line)?.[1];
        return port === undefined ? [] : [Number(port)];
      });
  }

  /** A port of 127.0.0.1 here that leads to a port of the server's own loopback. */
  async door(serverPort: number): Promise<number> {
    const folder = mkdtempSync(join(tmpdir(), "tendon-door-"));
    this.undos.push(() => rmSync(folder, { recursive: true, force: true }));
    const path = join(folder, "door.sock");
    const [command = "", ...args] = [
      ...this.atServer,
      process.execPath,
      "-e",
      DOOR,
      path,
      String(serverPort),
    ];
    const inside = spawn(command, args, { stdio: ["pipe", "ignore", "inherit"] });
    const gone = new Promise<void>((resolve) => inside.once("exit", () => resolve()));
    this.undos.push(() => {
      inside.kill("SIGKILL");
      return gone;
    });
    await eventually(() => run("ls", folder).includes("door.sock"));
    const sockets = new Set<Socket>();
    const outside = net.createServer((socket) => joined(socket, net.connect(path), sockets));
    await new Promise<void>((resolve) => outside.listen(0, "127.0.0.1", resolve));
    this.undos.push(() => {
      for (const socket of sockets) socket.destroy();
      return new Promise((resolve) => outside.close(() => resolve()));
    });
    return (outside.address() as AddressInfo).port;
  }

  async remove(): Promise<void> {
    for (let undo = this.undos.pop(); undo; undo = this.undos.pop()) await undo();
  }

  private removeNow(): void {
    for (let undo = this.undos.pop(); undo; undo = this.undos.pop()) void undo();
  }

  private wire(name: string, address: string, routerSide: string, routerAddress: string): void {
    run(
      "ip",
      "-n",
      name,
      "link",
      "add",
      "eth0",
      "type",
      "veth",
      "peer",
      "name",
      routerSide,
      "netns",
      this.router,
    );
    run("ip", "-n", name, "addr", "add", `${address}/24`, "dev", "eth0");
    run("ip", "-n", name, "link", "set", "eth0", "up");
    run("ip", "-n", this.router, "addr", "add", `${routerAddress}/24`, "dev", routerSide);
    run("ip", "-n", this.router, "link", "set", routerSide, "up");
    run("ip", "-n", name, "route", "add", "default", "via", routerAddress);
  }

  private wireIpv6(): void {
    run("ip", "netns", "exec", this.router, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1");
    for (const [name, side, link] of [
      [this.agent, "inside", 1],
      [this.server, "outside", 2],
    ] as const) {
      const [there, here] = [`${WORLD_V6}${link}:2`, `${WORLD_V6}${link}:1`];
      run("ip", "-n", name, "addr", "add", `${there}/112`, "dev", "eth0", "nodad");
      run("ip", "-n", this.router, "addr", "add", `${here}/112`, "dev", side, "nodad");
      run("ip", "-n", name, "route", "add", "default", "via", here);
    }
  }

  private rules(input: string): void {
    execFileSync("ip", ["netns", "exec", this.router, "nft", "-f", "-"], {
      input,
      stdio: ["pipe", "ignore", "inherit"],
    });
  }
}

/** Ends with the pipe to the test. */
const DOOR = `
const net = require("node:net");
const [path, port] = process.argv.slice(1);
net.createServer((outer) => {
  const inner = net.connect(Number(port), "127.0.0.1");
  for (const [from, to] of [[outer, inner], [inner, outer]]) {
    from.on("error", () => to.destroy());
    from.on("close", () => to.destroy());
    from.pipe(to);
  }
}).listen(path);
process.stdin.on("end", () => process.exit()).resume();
`;

function joined(a: Socket, b: Socket, all: Set<Socket>): void {
  for (const [from, to] of [
    [a, b],
    [b, a],
  ] as const) {
    all.add(from);
    from.on("error", () => to.destroy());
    from.on("close", () => {
      all.delete(from);
      to.destroy();
    });
    from.pipe(to);
  }
}

function run(command = "", ...args: string[]): string {
  return execFileSync(command, args, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
}
