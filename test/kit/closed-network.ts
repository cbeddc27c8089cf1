/**
 * A network that leads nowhere, as a namespace of this machine: programs in it reach each other at ADDRESS, and one port
 * outside through a door, a unix socket with a process at its inner end. Nothing outside reaches what listens in it.
 */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import net, { type Socket } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { eventually } from "./eventually.ts";

export const CLOSED_ADDRESS = "10.88.0.2";

const DOOR = `
const net = require("node:net");
net.createServer((socket) => {
  const out = net.connect(process.argv[1]);
  for (const each of [socket, out]) each.on("error", () => { socket.destroy(); out.destroy(); });
  socket.pipe(out).pipe(socket);
}).listen(Number(process.argv[2]), "127.0.0.1");
`;

export class ClosedNetwork {
  private readonly name = `tendon-closed-${process.pid}-${Math.random().toString(36).slice(2, 8)}`;
  private readonly children: ChildProcess[] = [];
  private readonly undos: (() => Promise<void> | void)[] = [];

  constructor() {
    const run = (...args: string[]) => execFileSync("ip", args, { stdio: ["ignore", "ignore", "pipe"] });
    run("netns", "add", this.name);
    this.undos.push(() => void run("netns", "del", this.name));
    try {
      run("-n", this.name, "link", "set", "lo", "up");
      run("-n", this.name, "addr", "add", `${CLOSED_ADDRESS}/32`, "dev", "lo");
    } catch (error) {
      run("netns", "del", this.name);
      throw error;
    }
  }

  /** Runs the command behind it in the network. */
  get inside(): string[] {
    return ["ip", "netns", "exec", this.name];
  }

  /** A program of the network that lives as long as it does. */
  start(command: readonly string[], env: Record<string, string> = {}): ChildProcess {
    const [file, ...args] = [...this.inside, ...command];
    const child = spawn(file!, args, { stdio: "ignore", env: { PATH: process.env.PATH ?? "", ...env } });
    this.children.push(child);
    return child;
  }

  /** From now on 127.0.0.1 in there leads, on this port, to the same port of this machine. */
  async door(port: number): Promise<void> {
    const dir = mkdtempSync(join(tmpdir(), "tendon-door-"));
    const open = new Set<Socket>();
    const server = net.createServer((socket) => {
      const out = net.connect(port, "127.0.0.1");
      for (const each of [socket, out]) {
        open.add(each);
        each.on("error", () => void [socket.destroy(), out.destroy()]).on("close", () => open.delete(each));
      }
      socket.pipe(out).pipe(socket);
    });
    await new Promise<void>((resolve) => server.listen(join(dir, "door"), resolve));
    this.undos.push(async () => {
      for (const socket of open) socket.destroy();
      await new Promise((resolve) => server.close(resolve));
      rmSync(dir, { recursive: true });
    });
    this.start([process.execPath, "-e", DOOR, join(dir, "door"), String(port)]);
    await this.listens(port);
  }

  /** Resolves when something in there listens on the port. */
  async listens(port: number): Promise<void> {
    const [file, ...args] = [...this.inside, "ss", "-Hltn", `sport = :${port}`];
    await eventually(() => execFileSync(file!, args).length > 0);
  }

  async remove(): Promise<void> {
    for (const child of this.children) child.kill("SIGKILL");
    for (const undo of this.undos.reverse()) await undo();
  }
}
