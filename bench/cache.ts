/**
 * How much of each model request its cache knows: the bytes that request n and n+1 begin with alike, cache marks removed,
 * and the share of input tokens that the fake model endpoint counts as cache reads, by the API's own rules. A session of 50
 * steps, every fifth with twelve calls side by side, whose harness is killed in the middle of an answer; once in a window
 * that holds it all, once in one where results have to be trimmed and the talk summarised.
 *
 * Baseline of the reads: the same requests, marked at their end alone, as a client without a plan for its marks would do.
 */
import { setTimeout as delay } from "node:timers/promises";
import { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionStatus } from "../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../test/kit/eventually.ts";
import {
  type FakeMessagesApi,
  gate,
  type MessagesRequest,
  type RecordedRequest,
  type Script,
  startFakeMessagesApi,
  type Turn,
  toolUse,
  turn,
} from "../test/kit/fake-messages-api.ts";
import { type InputUsage, PromptCache } from "../test/kit/fake-messages-cache.ts";
import { parseRequest } from "../test/kit/fake-messages-request.ts";
import { type Platform, startPlatform } from "../test/kit/platform.ts";
import type { Bench, BenchContext, Figure } from "./frame/bench.ts";

const STEPS = 50;
const PARALLEL_EVERY = 5;
const PARALLEL_CALLS = 12;
const RESULT_LINES = 60;
/** Whose cached prefixes may be short; see the fake's table. */
const MODEL = "claude-opus-5";
const SMALL_WINDOW_TOKENS = 12_000;
const AIM_PREFIX_PERCENT = 99.9;
const AIM_READ_PERCENT = 90;
/** Reads are counted from here on; before that there is little to read. */
const FROM_STEP = 5;
const WITHIN_MS = 600_000;
const MARK = `,"cache_control":{"type":"ephemeral"}`;

const SYSTEM = `You are at work on a machine of your own. ${"Take one step after the other, look at what came of it, and go on. ".repeat(40)}`;

export const cache: Bench = {
  name: "cache",
  describe: `the common beginning of each two requests and what caches know of them, ${STEPS} steps, the harness killed in the middle`,
  async run(context) {
    const steps = Math.max(FROM_STEP * 2, Math.round(STEPS * context.scale));
    let script = scriptOf(steps);
    const api = await startFakeMessagesApi({ script: (request, n) => script.next(request, n) });
    context.defer(() => api.stop());
    const env = { harness: { ANTHROPIC_BASE_URL: api.url, ANTHROPIC_API_KEY: api.apiKey } };
    context.say("starting the platform …");
    const platform = await startPlatform({ env });
    context.defer(() => platform.stop());
    const figures: Figure[] = [];
    for (const [name, settings] of [
      ["one window", {}],
      ["a small window", { context: { window_tokens: SMALL_WINDOW_TOKENS } }],
    ] as const) {
      context.say(`${steps} steps in ${name} …`);
      script = scriptOf(steps);
      const from = api.requests.length;
      const events = await play(context, platform, script, JSON.stringify(settings));
      figures.push(...figuresOf(name, api.requests.slice(from), events));
    }
    refuseRefusals(api);
    return figures;
  },
};

/** A request that was refused would not be counted, so the figures would say nothing. */
function refuseRefusals({ refusals }: FakeMessagesApi): void {
  if (refusals.length > 0) throw new Error(`the model endpoint refused: ${refusals[0]}`);
}

interface BenchScript {
  readonly next: Script;
  /** Resolves in the middle of the answer at which the harness is to die. */
  readonly middle: Promise<void>;
}

/** For one session. What the model does depends on the request alone, except that one answer does not end. */
function scriptOf(steps: number): BenchScript {
  const middle = gate();
  let isHeld = false;
  const next: Script = (request) => {
    const answer = answerTo(request, steps);
    if (isHeld || stepOf(request) < Math.floor(steps / 2) || answer.kind !== "answer") return answer;
    isHeld = true;
    middle.open();
    return { ...answer, before: { end: new Promise(() => {}) } };
  };
  return { next, middle: middle.opened };
}

/** The newest step that the request knows of. */
function stepOf({ messages }: MessagesRequest): number {
  const said = JSON.stringify(messages);
  return Math.max(0, ...[...said.matchAll(/step (\d+)/g)].map(([, n]) => Number(n)));
}

function answerTo(request: MessagesRequest, steps: number): Turn {
  const step = stepOf(request);
  const last = JSON.stringify(request.messages.at(-1));
  if (last.includes("Write notes from which"))
    return turn([`<summary>All is done up to step ${step}.</summary>`]);
  if (step >= steps) return turn(["All steps are done."]);
  const calls = (step + 1) % PARALLEL_EVERY === 0 ? PARALLEL_CALLS : 1;
  return turn([
    `On to step ${step + 1}.`,
    ...Array.from({ length: calls }, (_, i) =>
      toolUse("bash", { command: `seq -f "line %g of part ${i}" ${calls === 1 ? RESULT_LINES : 5}` }),
    ),
  ]);
}

/** Plays one session to its end; gives its log. */
async function play(
  context: BenchContext,
  platform: Platform,
  { middle }: BenchScript,
  loopSettings: string,
): Promise<Event[]> {
  const sessionId = await createSession(platform, loopSettings);
  context.defer(async () => {
    const hands = platform.client(HandService);
    for (const { id } of (await hands.listHands({ sessionId })).hands)
      await hands.releaseHand({ handId: id });
  });
  await Promise.race([middle, late("the middle")]);
  await platform.program("harness").end("SIGKILL");
  await platform.start("harness");
  const sessions = platform.client(SessionService);
  await eventually(
    async () => {
      const { session } = await sessions.getSession({ sessionId });
      return session?.status === SessionStatus.IDLE && !session.hasWork;
    },
    { withinMs: WITHIN_MS, everyMs: 200 },
  );
  return readLog(platform, sessionId);
}

async function late(what: string): Promise<never> {
  await delay(WITHIN_MS, undefined, { ref: false });
  throw new Error(`${what} was not reached`);
}

async function createSession(platform: Platform, loopSettings: string): Promise<string> {
  const { agent } = await platform.client(AgentService).createAgent({
    spec: {
      name: "bench cache",
      model: { id: MODEL },
      system: SYSTEM,
      tools: [{ kind: { case: "handToolset", value: {} } }],
      loopSettings,
    },
  });
  const payload = JSON.stringify({ content: [{ type: "text", text: "go" }] });
  const { session } = await platform.client(SessionService).createSession({
    agentId: agent?.id ?? "",
    initialEvents: [{ type: "user.message", payload }],
  });
  return session?.id ?? "";
}

async function readLog(platform: Platform, sessionId: string): Promise<Event[]> {
  const events: Event[] = [];
  for (let hasMore = true; hasMore; ) {
    const afterPosition = events.at(-1)?.position ?? 0n;
    const page = await platform.client(SessionService).getEvents({ sessionId, afterPosition, limit: 500 });
    events.push(...page.events);
    hasMore = page.hasMore;
  }
  return events;
}

function figuresOf(name: string, requests: readonly RecordedRequest[], events: readonly Event[]): Figure[] {
  const changed = changedPairs(events);
  const bodies = requests.map(({ body }) => body.toString().replaceAll(MARK, ""));
  const shares = bodies.slice(1).map((body, i) => commonLength(bodies[i]!, body) / bodies[i]!.length);
  const undisturbed = shares.filter((_, i) => !changed.has(i));
  const least = 100 * Math.min(...undisturbed);
  const counted = requests.flatMap(({ input }) => input ?? []);
  const reads = 100 * readShare(counted.slice(FROM_STEP - 1));
  const naive = 100 * readShare(withOneMark(requests).slice(FROM_STEP - 1));
  return [
    {
      figure: `common beginning of two requests, least of ${undisturbed.length}, ${name}`,
      unit: "%",
      product: least,
      baseline: undefined,
      aim: `≥ ${AIM_PREFIX_PERCENT} each`,
      met: least >= AIM_PREFIX_PERCENT,
      note: `${requests.length} requests; ${changed.size} pairs have a recorded decision between them`,
    },
    {
      figure: `input tokens read from the cache from step ${FROM_STEP} on, ${name}`,
      unit: "%",
      product: reads,
      baseline: naive,
      aim: `≥ ${AIM_READ_PERCENT}`,
      met: reads >= AIM_READ_PERCENT,
      note: "baseline: the same requests with one mark at their end",
    },
  ];
}

/** Pairs of requests (n, n+1), by n from 0, between which the log has a decision about the context. */
function changedPairs(events: readonly Event[]): Set<number> {
  const pairs = new Set<number>();
  let request = -1;
  for (const { type, payload } of events) {
    if (type === "span.model_request_start") request += 1;
    if (type !== "brain.context_changed") continue;
    // A summary has a request of its own, and counts for the next; else the running one already keeps to it.
    const { change, made_by: madeBy } = JSON.parse(payload);
    pairs.add(change === "compacted" && madeBy === "model" ? request : request - 1);
  }
  return pairs;
}

function commonLength(a: string, b: string): number {
  let length = 0;
  while (length < a.length && a[length] === b[length]) length += 1;
  return length;
}

function readShare(counted: readonly InputUsage[]): number {
  let read = 0;
  let all = 0;
  for (const { inputTokens, cacheReadTokens, cacheCreation5mTokens, cacheCreation1hTokens } of counted) {
    read += cacheReadTokens;
    all += inputTokens + cacheReadTokens + cacheCreation5mTokens + cacheCreation1hTokens;
  }
  return read / all;
}

function withOneMark(requests: readonly RecordedRequest[]): InputUsage[] {
  const known = new PromptCache();
  return requests.map(({ body }) => {
    const plain = JSON.parse(body.toString().replaceAll(MARK, ""));
    const marked = { ...plain, cache_control: { type: "ephemeral" } };
    return known.use(parseRequest(marked, "2023-06-01", "create"));
  });
}
