/** A hand agent in a private network with the world beyond it, for tests of what hands reach. */
import { execFile, execFileSync } from "node:child_process";
import { chmodSync, chownSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import type { FarSide } from "../integration/fixtures/far-side.mts";
import type { AgentSetting, NetworkAgent } from "../integration/fixtures/network-agent.mts";
import { CalledProcess } from "./called-process.ts";
import { repository } from "./owner-process.ts";
import { PrivateNetwork } from "./private-network.ts";
import { createCertificates, type TestCertificates } from "./test-certificates.ts";

/** Where the world answers. */
export const WORLD = {
  web: "203.0.113.10",
  other: "203.0.113.66",
  webV6: "2001:db8:5::10",
  private: "10.20.0.5",
  metadata: "169.254.169.254",
  otherMetadata: "100.100.100.200",
  metadataV6: "fd00:ec2::254",
} as const;

export class NetworkRig {
  readonly network: PrivateNetwork;
  readonly farSide: CalledProcess<FarSide>;
  private readonly folder: string;
  private readonly certificates: TestCertificates;
  private readonly agents: CalledProcess<NetworkAgent>[] = [];
  private dirs = 0;

  private constructor(
    network: PrivateNetwork,
    farSide: CalledProcess<FarSide>,
    folder: string,
    certificates: TestCertificates,
  ) {
    this.network = network;
    this.farSide = farSide;
    this.folder = folder;
    this.certificates = certificates;
  }

  static async start(): Promise<NetworkRig> {
    const folder = mkdtempSync(join(tmpdir(), "tendon-network-"));
    chmodSync(folder, 0o755);
    const network = new PrivateNetwork();
    const certificates = await createCertificates();
    try {
      network.addWorld(Object.values(WORLD));
      const { certFile, keyFile } = await certificates.issue("world");
      await promisify(execFile)(process.execPath, [
        join(repository, "scripts/build-hand-agent.mjs"),
        ...["--out", folder],
      ]);
      writeFileSync(join(folder, "hosts"), `${WORLD.web} by-file.example\n127.0.0.1 localhost\n`);
      const farSide = await CalledProcess.start<FarSide>("test/integration/fixtures/far-side.mts", {
        prefix: network.atServer,
        args: [certFile, keyFile],
      });
      return new NetworkRig(network, farSide, folder, certificates);
    } catch (error) {
      await network.remove();
      await certificates.remove();
      rmSync(folder, { recursive: true, force: true });
      throw error;
    }
  }

  /** An agent in the private network; `as` are words in front of its command line, such as those that make it another user. */
  async agent(
    setting: Partial<AgentSetting> = {},
    as: readonly string[] = [],
  ): Promise<CalledProcess<NetworkAgent> & { dataDir: string }> {
    const dataDir = setting.dataDir ?? this.dataDir();
    const full: AgentSetting = {
      program: join(this.folder, "tendon-hand-agent.mjs"),
      isolation: "bubblewrap",
      nameServer: this.network.serverAddress,
      hostsFile: join(this.folder, "hosts"),
      ...setting,
      dataDir,
    };
    const agent = await CalledProcess.start<NetworkAgent>("test/integration/fixtures/network-agent.mts", {
      prefix: [...this.network.atAgent, ...as],
      args: [JSON.stringify(full)],
    });
    this.agents.push(agent);
    return Object.assign(agent, { dataDir });
  }

  /** A data directory for an agent of this user. */
  dataDir(uid = 0): string {
    const path = join(this.folder, `agent-${this.dirs++}`);
    mkdirSync(path, { mode: 0o711 });
    chownSync(path, uid, uid);
    return path;
  }

  /** Command lines of its agents and of what runs their program, whoever the parents are. */
  commands(): string[] {
    const all = execFileSync("ps", ["-ewwo", "args"], { encoding: "utf8" }).split("\n");
    return all.filter((line) => line.includes(this.folder));
  }

  async remove(): Promise<void> {
    for (const agent of this.agents) await agent.kill();
    await this.farSide.kill();
    await this.network.remove();
    await this.certificates.remove();
    rmSync(this.folder, { recursive: true, force: true });
  }
}
