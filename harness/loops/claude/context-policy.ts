/**
 * Whether the next request has to say less than the log, and what (pure). Old results are trimmed in few, large steps;
 * what then still grows too large is summarised. Sizes are estimates, so a request that the model API refuses as too long
 * counts for more than they do.
 */

import { attachmentsStep, hasNewDocuments } from "./attachments.ts";
import { blockWeight } from "./block-weight.ts";
import type { AttachmentsDecision, TrimDecision } from "./context-decision.ts";
import type { History } from "./history.ts";
import type { ClaudeSettings, TrimSettings } from "./loop-settings.ts";
import { messageWeight } from "./message-list.ts";
import { type PlacedResult, TRIMMED_NOTE_CHARS } from "./tool-results.ts";

export interface ContextSize {
  /** Tokens of the next request, as far as can be told. */
  readonly tokens: number;
  readonly tokensPerByte: number;
  readonly windowTokens: number;
  /** Most tokens of an answer. */
  readonly answerTokens: number;
}

/** `wholeTalk`: the summary is asked for at the end of the talk itself, which the cache knows; else over a transcript. */
export type ContextStep =
  | TrimDecision
  | AttachmentsDecision
  | {
      readonly kind: "summarise";
      readonly keepFrom: number;
      readonly wholeTalk: boolean;
      readonly maxBytes: number;
    }
  /** No model gives a summary: an extract takes its place. */
  | { readonly kind: "extract"; readonly maxBytes: number };

/** Requests for one summary that may fail on their own account, each asking for less than the one before. */
const MAX_SUMMARY_FAILURES = 3;
/** Of the window, for the transcript that is to be summarised: at first, then after each failure. */
const TRANSCRIPT_SHARES = [0.5, 0.25, 0.1];
const EXTRACT_SHARE = 0.05;
/** Of the window, for the summary itself and the question. */
const SUMMARY_SHARE = 0.08;
/** Of the window, for the answer, where answers may be longer than that. */
const MAX_ANSWER_SHARE = 0.25;
/** Below this share of the window messages are not what fills it. */
const WORTHWHILE_SHARE = 0.1;

const UNMEASURED_TOKENS_PER_BYTE = 1 / 3;
const MIN_TOKENS_PER_BYTE = 0.1;
const MAX_TOKENS_PER_BYTE = 0.7;

/** From what the model reported for the newest answer, and what has come since. `fixedBytes` are tools and system prompt. */
export function contextSize(
  { weight, measured, trouble }: History,
  fixedBytes: number,
  windowTokens: number,
  answerTokens: number,
): ContextSize {
  const seen = measured && measured.tokens / (measured.weight + fixedBytes);
  const tokensPerByte = Math.min(
    MAX_TOKENS_PER_BYTE,
    Math.max(MIN_TOKENS_PER_BYTE, seen ?? UNMEASURED_TOKENS_PER_BYTE),
  );
  return {
    tokens: (weight + fixedBytes) * tokensPerByte,
    tokensPerByte,
    windowTokens: Math.min(windowTokens, trouble.limitTokens ?? windowTokens),
    answerTokens: Math.min(answerTokens, windowTokens * MAX_ANSWER_SHARE),
  };
}

export function contextStep(
  history: History,
  size: ContextSize,
  { trim, compact }: ClaudeSettings,
): ContextStep | undefined {
  const attachments = attachmentsStep(history);
  if (attachments !== undefined) return attachments;
  const { tokens, windowTokens, tokensPerByte, answerTokens } = size;
  const { tooLong, noSummary } = history.trouble;
  const isRefused = tooLong > 0 || noSummary > 0;
  const most = compact && Math.min((windowTokens * compact.atPercent) / 100, windowTokens - answerTokens);
  const isFull = most !== undefined && tokens > most;
  if (trim !== undefined && !isRefused && tokens > (windowTokens * trim.atPercent) / 100) {
    const step = trimStep(history, size, trim);
    if (step !== undefined && (most === undefined || tokens - step.freedTokens <= most)) return step.decision;
  }
  if (compact === undefined) return undefined;
  const isWorthwhile = history.weight * tokensPerByte > windowTokens * WORTHWHILE_SHARE;
  if (!isRefused && !(isFull && isWorthwhile)) return undefined;
  // What a document costs is a guess until a model has read it, and a summary made before that would lose it.
  if (!isRefused && hasNewDocuments(history)) return undefined;
  const keepBytes = (windowTokens * compact.keepPercent) / 100 / tokensPerByte;
  return compactStep(history, size, keepBytes);
}

function compactStep(history: History, size: ContextSize, keepBytes: number): ContextStep {
  const { tokens, windowTokens, tokensPerByte } = size;
  const { tooLong, noSummary, summaries } = history.trouble;
  // The first refusal was of the talk's own request.
  const failures = noSummary + Math.max(0, tooLong - 1);
  // With a window that is said to be far larger than it is, a transcript that did not fit would be asked about again.
  const fits = tooLong > 1 ? Math.min(windowTokens, tokens) : windowTokens;
  const bytes = (share: number) => Math.floor((fits * share) / tokensPerByte);
  if (failures >= MAX_SUMMARY_FAILURES) return { kind: "extract", maxBytes: bytes(EXTRACT_SHARE) };
  const isFirst = tooLong === 0 && noSummary === 0 && summaries === 0;
  return {
    kind: "summarise",
    keepFrom: isFirst ? keepFrom(history, keepBytes) : 0,
    wholeTalk: isFirst && tokens <= windowTokens * (1 - SUMMARY_SHARE),
    maxBytes: bytes(TRANSCRIPT_SHARES[failures] ?? EXTRACT_SHARE),
  };
}

/** The oldest request whose answer, and all after it, fit into the bound. */
function keepFrom({ messages, starts }: History, keepBytes: number): number {
  let found = 0;
  let bytes = 0;
  let index = messages.length;
  for (const start of starts.toReversed()) {
    const at = messages.lastIndexOf(start.message, index);
    if (at < 0) break;
    for (; index > at + 1; index--) bytes += messageWeight(messages[index - 1]!);
    if (bytes > keepBytes) break;
    if (messages[at + 1]?.role === "assistant") found = start.position;
  }
  return found;
}

interface TrimStep {
  readonly decision: TrimDecision;
  readonly freedTokens: number;
}

/** Results that the model has not seen yet stay whole. */
function trimStep(history: History, size: ContextSize, trim: TrimSettings): TrimStep | undefined {
  const { windowTokens, tokensPerByte } = size;
  const newest = history.messages.at(-1);
  const seen = history.results.filter(({ place }) => place.message !== newest);
  let keepBytes = (windowTokens * trim.keepPercent) / 100 / tokensPerByte;
  let end = seen.length;
  for (; end > 0 && keepBytes >= 0; end--) keepBytes -= bytesOf(seen[end - 1]!);
  const old = keepBytes < 0 ? seen.slice(0, end + 1) : [];
  const freed = old.reduce((sum, result) => {
    const saved = bytesOf(result) - trim.keepChars - TRIMMED_NOTE_CHARS;
    return sum + (result.isTrimmed ? 0 : Math.max(0, saved));
  }, 0);
  const freedTokens = freed * tokensPerByte;
  const last = old.at(-1);
  if (last === undefined || freedTokens < (windowTokens * trim.freePercent) / 100) return undefined;
  const beforePosition = last.position + 1;
  return { decision: { kind: "trim", beforePosition, keepChars: trim.keepChars }, freedTokens };
}

function bytesOf({ place }: PlacedResult): number {
  return blockWeight(place.message.blocks[place.block]!);
}
