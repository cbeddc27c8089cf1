/** What the driver remembers of its hands: one small file each, below `<dataDir>/docker/`, written before anything is made. */
import { randomBytes } from "node:crypto";
import { mkdir, readdir, readFile, rename, unlink, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { createPrivateFile } from "../../../kit/private-file.ts";
import { HandError } from "../driver.ts";
import type { ContainerRecipe } from "./container-plan.ts";

export interface DockerRecord {
  readonly version: 1;
  readonly handId: string;
  readonly unit: string;
  readonly recipe: ContainerRecipe;
}

/** Ids are names of files. */
export const HAND_ID = /^[A-Za-z0-9_-]{1,80}$/;
const SUFFIX = ".json";

export class HandRecords {
  private readonly dir: string;
  private made: Promise<unknown> | undefined;
  private agentIdText: Promise<string> | undefined;

  constructor(dataDir: string) {
    this.dir = join(resolve(dataDir), "docker");
  }

  /** Tells this agent's containers from those of others on the same engine; lives as long as the data directory. */
  agentId(): Promise<string> {
    this.agentIdText ??= this.readAgentId();
    return this.agentIdText;
  }

  async read(handId: string): Promise<DockerRecord | undefined> {
    if (!HAND_ID.test(handId)) return undefined;
    try {
      const record = JSON.parse(await readFile(this.path(handId), "utf8")) as DockerRecord;
      if (record.version !== 1) throw new HandError("the hand was made by a newer version of the driver");
      return record;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
      throw error;
    }
  }

  async write(record: DockerRecord): Promise<void> {
    await this.makeDir();
    const path = this.path(record.handId);
    const fresh = `${path}.${randomBytes(4).toString("hex")}`;
    await writeFile(fresh, `${JSON.stringify(record)}\n`, { mode: 0o600 });
    await rename(fresh, path);
  }

  async remove(handId: string): Promise<void> {
    await unlink(this.path(handId)).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "ENOENT") throw error;
    });
  }

  async list(): Promise<string[]> {
    const names = await readdir(this.dir).catch(() => []);
    return names.filter((name) => name.endsWith(SUFFIX)).map((name) => name.slice(0, -SUFFIX.length));
  }

  private path(handId: string): string {
    return join(this.dir, `${handId}${SUFFIX}`);
  }

  private async readAgentId(): Promise<string> {
    await this.makeDir();
    const path = join(this.dir, "agent-id");
    await createPrivateFile(path, randomBytes(12).toString("hex"));
    return (await readFile(path, "utf8")).trim();
  }

  private makeDir(): Promise<unknown> {
    this.made ??= mkdir(this.dir, { recursive: true, mode: 0o700 });
    return this.made;
  }
}
