/**
 * Prompt caching as the API does it, with sizes instead of time: an entry is the prefix that ends at a breakpoint; a
 * later request reads the longest entry that ends at one of the 20 blocks that end with one of its breakpoints. The prefix
 * is tools, then system, then messages, block by block, byte for byte; marks themselves do not count. Entries do not expire.
 * The API counts a run of neighbouring calls, or of results, as one block; here each counts, so that nobody relies on it.
 */
import { createHash } from "node:crypto";
import { roughTokens } from "../../harness/demo-model/messages-wire.ts";
import { isObject, type Json, type MessagesRequest } from "./fake-messages-request.ts";

const LOOKBACK_BLOCKS = 20;
/** Shorter prefixes are not cached; by the beginning of the model's name, as documented. */
const MIN_TOKENS: readonly [RegExp, number][] = [
  [/^claude-(opus|fable|mythos)-5/, 512],
  [/^claude-opus-4-7/, 2_048],
  [/^claude-(opus-4-[56]|haiku-4-5)/, 4_096],
];
const MIN_TOKENS_OF_OTHERS = 1_024;
const MAX_ENTRIES = 100_000;

export interface InputUsage {
  inputTokens: number;
  cacheReadTokens: number;
  cacheCreation5mTokens: number;
  cacheCreation1hTokens: number;
}

interface Step {
  /** Of everything up to the end of this block. */
  digest: string;
  tokens: number;
  ttl: "5m" | "1h" | undefined;
}

export class PromptCache {
  private readonly entries = new Set<string>();
  private readonly minTokens: number | undefined;

  /** Prefixes shorter than `minTokens`, or than the model's minimum, are not cached. */
  constructor(minTokens?: number) {
    this.minTokens = minTokens;
  }

  /** How this request's input is counted; its breakpoints can be read by all that come after. */
  use(request: MessagesRequest): InputUsage {
    const steps = prefixSteps(request);
    const total = steps.at(-1)?.tokens ?? 0;
    const least = this.minTokens ?? minTokensOf(request.model);
    const marks = steps.flatMap((step, i) => (step.ttl && step.tokens >= least ? [i] : []));
    const read = this.longestEntry(steps, marks);
    const created = { "5m": 0, "1h": 0 };
    let counted = read;
    for (const mark of marks) {
      const { ttl, tokens, digest } = steps[mark]!;
      created[ttl!] += Math.max(0, tokens - counted);
      counted = Math.max(counted, tokens);
      this.store(digest);
    }
    return {
      inputTokens: total - counted,
      cacheReadTokens: read,
      cacheCreation5mTokens: created["5m"],
      cacheCreation1hTokens: created["1h"],
    };
  }

  private longestEntry(steps: readonly Step[], marks: readonly number[]): number {
    for (const mark of marks.toReversed())
      for (let i = mark; i > Math.max(-1, mark - LOOKBACK_BLOCKS); i--)
        if (this.entries.has(steps[i]!.digest)) return steps[i]!.tokens;
    return 0;
  }

  private store(digest: string): void {
    this.entries.add(digest);
    if (this.entries.size > MAX_ENTRIES) this.entries.delete(this.entries.values().next().value!);
  }
}

function minTokensOf(model: string): number {
  return MIN_TOKENS.find(([name]) => name.test(model))?.[1] ?? MIN_TOKENS_OF_OTHERS;
}

/** All tokens of a request. */
export function inputTokensOf(request: MessagesRequest): number {
  return prefixSteps(request).at(-1)?.tokens ?? 0;
}

/** Another model shares nothing; another tool choice or thinking setting shares tools and system only. */
function prefixSteps(request: MessagesRequest): Step[] {
  const steps: Step[] = [];
  let digest = hash("", request.model);
  let tokens = 0;
  const step = (kind: string, block: Json) => {
    const [unmarked, ttl] = withoutMarks(block);
    const content = `${kind}:${JSON.stringify(unmarked)}`;
    digest = hash(digest, content);
    tokens += roughTokens(content);
    steps.push({ digest, tokens, ttl });
  };
  for (const tool of request.tools) step("tool", tool);
  for (const block of request.system) step("system", block);
  digest = hash(digest, JSON.stringify([request.toolChoice ?? null, request.thinking ?? null]));
  for (const { role, content } of request.messages) for (const block of content) step(role, block);
  const last = steps.at(-1);
  if (request.cacheControl && last) last.ttl ??= ttlOf(request.cacheControl);
  return steps;
}

function withoutMarks(block: Json): [Json, Step["ttl"]] {
  const { cache_control: mark, ...rest } = block;
  let ttl = isObject(mark) ? ttlOf(mark) : undefined;
  if (block.type === "tool_result" && Array.isArray(block.content)) {
    const inner = (block.content as Json[]).map(withoutMarks);
    rest.content = inner.map(([unmarked]) => unmarked);
    ttl ??= inner.findLast(([, innerTtl]) => innerTtl)?.[1];
  }
  return [rest, ttl];
}

function ttlOf(mark: Json): "5m" | "1h" {
  return mark.ttl === "1h" ? "1h" : "5m";
}

function hash(before: string, content: string): string {
  return createHash("sha256").update(before).update("\0").update(content).digest("base64");
}
