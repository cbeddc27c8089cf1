/** What a brain has to do next, from what the log says. Pure: this is why any holder can go on from any prefix. */
import { EVALUATION_END, type Evaluation, OUTCOME_DEFINED, type Outcome } from "./outcome/outcome-state.ts";
import type { OpenCall, SessionState, WaitingInput } from "./session-state.ts";

export interface StepSettings {
  /** Messages that arrive during a turn are taken in with the next request instead of after the turn (L6). */
  readonly takeQueuedEachStep: boolean;
  /** Answers with calls that one turn may hold. */
  readonly maxRounds: number;
  /** Answers in a row that may be cut off inside a call. */
  readonly maxCutOffs: number;
  /** Summaries of the context in a row that no answer follows. */
  readonly maxCompactions: number;
}

export type NextStep =
  /** A request was begun by someone who is gone. */
  | { readonly kind: "close_span"; readonly spanId: string }
  | { readonly kind: "interrupt"; readonly interrupts: readonly WaitingInput[] }
  /** Calls that can get their result without a client. */
  | { readonly kind: "run_calls" }
  /** Only clients, or threads, can go on; it is said which calls wait for whom. */
  | {
      readonly kind: "await_others";
      readonly callIds: readonly string[];
      readonly waitIds: readonly string[];
      /** Of `callIds`, those that wait for workers. */
      readonly workerIds: readonly string[];
    }
  | { readonly kind: "ask"; readonly turn: number; readonly inputs: readonly WaitingInput[] }
  /** The agent has done what it could for the outcome: it is judged, once its threads rest. */
  | { readonly kind: "begin_evaluation"; readonly outcome: Outcome }
  | { readonly kind: "grade"; readonly outcome: Outcome; readonly evaluation: Evaluation }
  /** `history`: it is more than a harness may hold, which the log alone does not say. */
  | { readonly kind: "give_up"; readonly why: "rounds" | "cut_offs" | "compactions" | "history" }
  | { readonly kind: "end_turn"; readonly reason: "end_turn" | "refusal" }
  /** Nothing to do until a client says something. */
  | { readonly kind: "rest" };

export function nextStep(state: SessionState, settings: StepSettings): NextStep {
  if (state.status === "terminated") return { kind: "rest" };
  if (state.openSpanId !== undefined) return { kind: "close_span", spanId: state.openSpanId };
  if (state.interrupts.length > 0) return { kind: "interrupt", interrupts: state.interrupts };
  if (state.openCalls.size > 0) return stepWithCalls(state);
  if (state.atBudget) return { kind: "rest" };
  if (state.owed) return stepInTurn(state, settings);
  const { outcome } = state;
  if (outcome?.evaluation !== undefined && !outcome.isPaused)
    return { kind: "grade", outcome, evaluation: outcome.evaluation };
  const inTurn = state.status !== "idle";
  if (inTurn && state.refusal !== undefined) return { kind: "end_turn", reason: "refusal" };
  if (startsTurn(state)) return { kind: "ask", turn: state.turn + 1, inputs: consumable(state, true) };
  if (outcome?.isBegun && !outcome.isPaused) {
    // The server says when they rest, also while nobody holds the session.
    const isAwaiting = outcome.awaitsThreads && !inTurn;
    return isAwaiting ? { kind: "rest" } : { kind: "begin_evaluation", outcome };
  }
  return inTurn ? { kind: "end_turn", reason: "end_turn" } : { kind: "rest" };
}

/** Whether a call can get its result without a client: by running it, or by refusing it. */
export function isRunnable(call: OpenCall): boolean {
  if (call.kind === "custom") return false;
  return call.permission !== "ask" || call.confirmation !== undefined;
}

function stepWithCalls(state: SessionState): NextStep {
  const { openCalls, status, announcedCalls, announcedWaits, announcedOffers } = state;
  const calls = [...openCalls.values()];
  // The server answers these, also while nobody holds the session.
  const isWait = ({ eventId }: OpenCall) => status === "idle" && announcedWaits.has(eventId);
  const waitIds = calls.filter(isWait).map(({ eventId }) => eventId);
  const others = calls.filter((call) => !isWait(call));
  // Workers answer these; a brain that asked for them again would only hear that they wait.
  const isOffered = ({ eventId }: OpenCall) => status === "idle" && announcedOffers.has(eventId);
  if (others.some((call) => isRunnable(call) && !isOffered(call))) return { kind: "run_calls" };
  const callIds = others.map(({ eventId }) => eventId);
  const workerIds = others.filter(isOffered).map(({ eventId }) => eventId);
  const isAnnounced =
    status === "idle" &&
    announcedCalls?.size === callIds.length &&
    callIds.every((id) => announcedCalls.has(id));
  return isAnnounced ? { kind: "rest" } : { kind: "await_others", callIds, waitIds, workerIds };
}

function stepInTurn(state: SessionState, settings: StepSettings): NextStep {
  if (state.rounds >= settings.maxRounds) return { kind: "give_up", why: "rounds" };
  if (state.cutOffs >= settings.maxCutOffs) return { kind: "give_up", why: "cut_offs" };
  if (state.compactions >= settings.maxCompactions) return { kind: "give_up", why: "compactions" };
  const takesMessages = settings.takeQueuedEachStep || state.turn === 0;
  return { kind: "ask", turn: state.turn, inputs: consumable(state, takesMessages) };
}

const STARTING: ReadonlySet<string> = new Set(["user.message", OUTCOME_DEFINED, EVALUATION_END]);

/** `retries_exhausted` keeps what waited; it goes along with the next message. A system message alone starts nothing. */
function startsTurn({ waiting, exhaustedAt, isHeld }: SessionState): boolean {
  return waiting.some(
    (input) =>
      (STARTING.has(input.type) || (isThreadMessage(input) && !isHeld)) && input.position > exhaustedAt,
  );
}

const isThreadMessage = ({ type }: WaitingInput) => type === "agent.thread_message_received";

/** What threads say belongs to the running turn: it may be what a call has just waited for. */
function consumable({ waiting, unconsumedAnswers }: SessionState, withMessages: boolean): WaitingInput[] {
  const messages = withMessages ? waiting : waiting.filter(isThreadMessage);
  return [...messages, ...unconsumedAnswers].sort((a, b) => (a.position < b.position ? -1 : 1));
}
