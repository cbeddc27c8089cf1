/** Tool lists by digest. They never change, so they are kept, a bounded number of them. */
import type { HandAgentStore, ToolRecord } from "../store/hand-agents.ts";

const KEPT = 256;

export class ToolLists {
  private readonly store: Pick<HandAgentStore, "toolList">;
  private readonly kept = new Map<string, { tools: readonly ToolRecord[]; names: ReadonlySet<string> }>();

  constructor(store: Pick<HandAgentStore, "toolList">) {
    this.store = store;
  }

  /** Names of the tools; undefined when the list is not known. */
  async names(digest: string | undefined): Promise<ReadonlySet<string> | undefined> {
    return (await this.load(digest))?.names;
  }

  async tools(digest: string | undefined): Promise<readonly ToolRecord[]> {
    return (await this.load(digest))?.tools ?? [];
  }

  private async load(digest: string | undefined) {
    if (digest === undefined) return undefined;
    const known = this.kept.get(digest);
    if (known !== undefined) return known;
    const tools = await this.store.toolList(digest);
    if (tools === undefined) return undefined;
    const entry = { tools, names: new Set(tools.map((tool) => tool.name)) };
    const oldest = this.kept.keys().next().value;
    if (this.kept.size >= KEPT && oldest !== undefined) this.kept.delete(oldest);
    this.kept.set(digest, entry);
    return entry;
  }
}
