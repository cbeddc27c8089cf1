/**
 * Notices a server whose database was set back: the number of this agent's connection only ever grows there, so one that
 * the agent has had before comes from a database older than what it has seen. Hands that such a server does not know may
 * well belong to somebody.
 */
import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";

export class ServerGeneration {
  private readonly path: string;

  constructor(dataDir: string) {
    this.path = join(dataDir, "connection-number");
  }

  /** True when the server has forgotten connections. Remembers the number. */
  async met(generation: bigint): Promise<boolean> {
    const text = await readFile(this.path, "utf8").catch(() => "0");
    const before = /^\d+\s*$/.test(text) ? BigInt(text) : 0n;
    const fresh = `${this.path}.new`;
    await writeFile(fresh, `${generation}\n`, { mode: 0o600 });
    await rename(fresh, this.path);
    return generation <= before;
  }
}
