/** A loop without a model whose answers a test gives: by the agent's name, for each of its requests. */
import type { Loop, LoopOutcome, LoopTurn, ModelUsage, ProposedEvent } from "../../harness/loops/loop.ts";

export interface PuppetAnswer {
  readonly say?: string;
  readonly calls?: readonly { readonly name: string; readonly input?: object }[];
  readonly usage?: Partial<ModelUsage>;
}

/** `request` counts the session's model requests, from 1. */
export type Puppet = (
  request: number,
  turn: LoopTurn,
  signal: AbortSignal,
) => PuppetAnswer | Promise<PuppetAnswer>;

/** For an agent's spec. */
export const PUPPET = { loop: "puppet" } as const;

export function puppetLoop(puppets: Readonly<Record<string, Puppet>>): Loop {
  return {
    name: "puppet",
    model: () => "puppet",
    async run(turn, signal) {
      const puppet = puppets[turn.agent.spec?.name ?? ""];
      const request = turn.history.filter(({ type }) => type === "span.model_request_start").length;
      return outcomeOf((await puppet?.(request, turn, signal)) ?? { say: "Done." }, turn);
    },
  };
}

function outcomeOf({ say, calls = [], usage }: PuppetAnswer, turn: LoopTurn): LoopOutcome {
  const events: ProposedEvent[] = [];
  if (say !== undefined) {
    events.push({ kind: "message", eventId: turn.newEventId(), texts: [say], blocks: [] });
  }
  for (const { name, input = {} } of calls) {
    const inputText = JSON.stringify(input);
    const eventId = turn.newEventId();
    events.push({ kind: "call", eventId, modelName: name, inputText, problem: undefined, blocks: [] });
  }
  const none = { inputTokens: 0, outputTokens: 0, cacheReadInputTokens: 0, cacheCreationInputTokens: 0 };
  return {
    kind: "response",
    response: { events, stop: { kind: "done", reason: "puppet" }, usage: { ...none, ...usage } },
  };
}
