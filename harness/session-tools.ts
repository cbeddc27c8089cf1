/** The tools that a session works with: the agent's word, its slots, and the lists of MCP servers that its log has. */
import type { AgentSpec } from "../proto/gen/tendon/v1/agent_pb.js";
import type { Assignment, SlotTools } from "../proto/gen/tendon/v1/harness_service_pb.js";
import type { SessionState } from "./session-state.ts";
import { type ToolCatalogue, toolCatalogue } from "./tool-catalogue.ts";
import type { WebAbilities } from "./web/web-tools.ts";

type Assigned = Pick<Assignment, "session" | "slots" | "webTools">;

const NO_WEB: WebAbilities = { fetch: false, search: false };

/** A thread whose agent says nothing of deeper trees makes no threads: what would always be refused is not offered unasked. */
function specOf(session: Assigned["session"]): AgentSpec | undefined {
  const spec = session?.agent?.spec;
  const isThread = session !== undefined && session.parentSessionId !== "";
  if (spec === undefined || !isThread || (spec.multiagent?.maxDepth ?? 0) > 1) return spec;
  const { multiagent: _, ...rest } = spec;
  return rest;
}

export class SessionTools {
  private readonly spec: AgentSpec | undefined;
  private readonly slots: readonly SlotTools[];
  private readonly web: WebAbilities;
  private readonly state: SessionState;
  private known: { readonly catalogue: ToolCatalogue; readonly lists: number } | undefined;

  constructor({ session, slots, webTools }: Assigned, state: SessionState) {
    this.spec = specOf(session);
    this.slots = slots;
    this.web = webTools ?? NO_WEB;
    this.state = state;
  }

  /** Made anew when the log has another list. */
  get catalogue(): ToolCatalogue {
    const { mcpServers } = this.state;
    const lists = [...mcpServers.values()].filter(({ tools }) => tools !== undefined).length;
    if (this.known?.lists !== lists) {
      this.known = { catalogue: toolCatalogue(this.spec, this.slots, mcpServers, this.web), lists };
    }
    return this.known.catalogue;
  }

  /** MCP servers that are to be asked in this turn: those that never answered are, once a turn. */
  serversToAsk(turn: number): string[] {
    const named = (this.spec?.tools ?? []).flatMap(({ kind }) =>
      kind.case === "mcpToolset" ? [kind.value.serverName] : [],
    );
    return named.filter((name) => {
      const known = this.state.mcpServers.get(name);
      return known === undefined || (known.tools === undefined && known.turn < turn);
    });
  }
}
