/**
 * The Messages API over the official SDK. The only file that knows the SDK: it sends a body as it was planned, gives the
 * stream's events, and says in the loop's words why there is no answer. It never tries twice.
 */
import Anthropic, { APIConnectionError, APIConnectionTimeoutError, APIError } from "@anthropic-ai/sdk";
import type { Clock } from "../../../kit/clock.ts";
import type { ModelFailure } from "../loop.ts";
import type { AttachmentTrouble } from "./attachments.ts";
import type { ModelFetch } from "./model-fetch.ts";

/** Events as the API streams them; readers take what they know. */
export type StreamEvent = { readonly type: string } & Record<string, unknown>;

export interface ModelClientOptions {
  /** At most one of the two; with neither, requests carry no credential, for servers that need none. */
  readonly apiKey?: string | undefined;
  readonly authToken?: string | undefined;
  /** Where the API's paths begin; undefined for the API itself. */
  readonly baseUrl?: string | undefined;
  readonly fetch: ModelFetch;
  readonly clock: Clock;
}

/** No whole answer, and why. */
export class ModelFailed extends Error {
  override readonly name = "ModelFailed";
  readonly failure: ModelFailure;
  /** The request does not fit into the model's window, which holds so many tokens, as far as that was said. */
  readonly tooLong: { readonly limitTokens: number | undefined } | undefined;
  /** It may have been refused for a document or an image that it holds, or for all of them together; the likeliest first. */
  readonly attachments: readonly AttachmentTrouble[];

  constructor(failure: ModelFailure, { tooLong, attachments }: Pick<ModelFailed, "tooLong" | "attachments">) {
    super(failure.message);
    this.failure = failure;
    this.tooLong = tooLong;
    this.attachments = attachments;
  }
}

const MAX_MESSAGE_CHARS = 1_000;
/** The SDK wants a bound of its own; the silence bound here is the one that counts. */
const LONGEST_REQUEST_MS = 2 ** 31 - 1;
/** A request that is refused as invalid is tried so often in all: gateways have been seen to do that in passing. */
const INVALID_ATTEMPTS = 3;
const DENIED_ATTEMPTS = 2;

export class ModelClient {
  private readonly api: Anthropic;
  private readonly clock: Clock;
  private readonly secrets: readonly string[];

  constructor({ apiKey, authToken, baseUrl, fetch, clock }: ModelClientOptions) {
    this.clock = clock;
    this.secrets = [apiKey, authToken].filter((secret) => secret !== undefined && secret !== "") as string[];
    // A credential is always passed, so that the SDK looks for none in files or variables.
    const credential = apiKey ? { apiKey } : authToken ? { authToken } : { authToken: "none" };
    this.api = new Anthropic({
      ...credential,
      ...(this.secrets.length === 0 && { defaultHeaders: { authorization: null } }),
      baseURL: baseUrl ?? "https://api.anthropic.com",
      fetch,
      maxRetries: 0,
      timeout: LONGEST_REQUEST_MS,
      logLevel: "off",
    });
  }

  /**
   * Sends the body and gives the stream's events until it ends. Throws ModelFailed; or the signal's reason once that
   * aborts. `maxSilenceMs` bounds the wait for each sign of life.
   */
  async *stream(
    body: string | Uint8Array,
    maxSilenceMs: number,
    signal: AbortSignal,
  ): AsyncGenerator<StreamEvent> {
    const silence = new SilenceWatch(this.clock, maxSilenceMs);
    const stop = AbortSignal.any([signal, silence.signal]);
    let began = false;
    try {
      const events = await this.open(body, stop);
      for await (const event of events) {
        began ||= event.type === "content_block_start";
        silence.heard();
        yield event;
      }
      // The SDK ends quietly when it was aborted.
      stop.throwIfAborted();
    } catch (error) {
      signal.throwIfAborted();
      const cause = silence.signal.aborted ? "silent" : error;
      throw new ModelFailed(this.failureOf(cause, began), began ? NO_REASON : refusalReason(cause));
    } finally {
      silence.stop();
    }
  }

  /** How many tokens the model's window holds; undefined when the API does not say. Rejects when it cannot be asked. */
  async windowTokens(model: string, signal: AbortSignal): Promise<number | undefined> {
    const { max_input_tokens: tokens } = await this.api.models.retrieve(model, {}, { signal });
    return typeof tokens === "number" && tokens > 0 ? tokens : undefined;
  }

  private open(body: string | Uint8Array, signal: AbortSignal): Promise<AsyncIterable<StreamEvent>> {
    return this.api.post<AsyncIterable<StreamEvent>>("/v1/messages", {
      body,
      headers: { "content-type": "application/json" },
      stream: true,
      signal,
    });
  }

  private failureOf(error: unknown, began: boolean): ModelFailure {
    const retryAfterMs = error instanceof APIError ? retryAfter(error, this.clock.nowMs()) : undefined;
    const failure = (
      type: ModelFailure["type"],
      message: string,
      maxAttempts: number = Number.POSITIVE_INFINITY,
    ): ModelFailure => ({ type, message: this.cleaned(message), maxAttempts, retryAfterMs, began });
    const failed = "model_request_failed_error";
    if (error === "silent" || error instanceof APIConnectionTimeoutError) {
      return failure(failed, "The model did not answer in time.");
    }
    if (error instanceof APIConnectionError) {
      return failure(failed, `The model could not be reached: ${causeOf(error)}.`);
    }
    if (!(error instanceof APIError)) {
      return failure(
        failed,
        began ? "The model's answer broke off." : `The model gave no answer: ${causeOf(error)}.`,
      );
    }
    const said = error.apiMessage ?? `status ${error.status ?? "unknown"}`;
    if (error.type === "overloaded_error" || error.status === 529) {
      return failure("model_overloaded_error", `The model is overloaded: ${said}`);
    }
    if (error.type === "rate_limit_error" || error.status === 429) {
      return failure("model_rate_limited_error", `The model's rate limit is reached: ${said}`);
    }
    if (error.type === "billing_error" || error.status === 402) {
      return failure("billing_error", `The model's provider refuses for billing reasons: ${said}`, 1);
    }
    switch (error.status) {
      case 401:
      case 403:
        return failure(
          failed,
          `The model's provider refuses the credential (${error.status}): ${said}`,
          DENIED_ATTEMPTS,
        );
      case 404:
      case 413:
        return failure(failed, `The model's provider refuses the request (${error.status}): ${said}`, 1);
      case 400:
      case 422:
        return failure(failed, `The model's provider calls the request invalid: ${said}`, INVALID_ATTEMPTS);
      default:
        return failure(failed, `The model failed: ${said}`);
    }
  }

  /** A gateway may repeat what it was sent. */
  private cleaned(message: string): string {
    let text = message;
    for (const secret of this.secrets) text = text.replaceAll(secret, "[redacted]");
    return text.length > MAX_MESSAGE_CHARS ? `${text.slice(0, MAX_MESSAGE_CHARS)}…` : text;
  }
}

/** What the API, and gateways before it, say of a request that is too long. */
const TOO_LONG =
  /prompt is too long|exceeds? (the )?(model's )?(maximum )?context|context (window|limit|length)|input is too long|too many (input )?tokens/i;

/** "… pdf.source.base64.data: A maximum of 100 PDF pages may be provided.", "The PDF specified was not valid." */
const OF_DOCUMENTS = /\b(pdf|document)s?\b/i;
/** "Could not process image", "… image.source.base64: image exceeds 5 MB maximum". */
const OF_IMAGES = /\bimages?\b/i;
/** "Too much media: 0 document pages + 101 images > 100". */
const TOO_MUCH = /\bpages\b|too (much|many)/i;

type Reason = Pick<ModelFailed, "tooLong" | "attachments">;

const NO_REASON: Reason = { tooLong: undefined, attachments: [] };

function refusalReason(error: unknown): Reason {
  if (!(error instanceof APIError)) return NO_REASON;
  if (error.status === 413) return { ...NO_REASON, tooLong: { limitTokens: undefined } };
  if (error.status !== 400 && error.status !== 422) return NO_REASON;
  const said = `${error.apiMessage ?? ""} ${error.message}`;
  if (!TOO_LONG.test(said)) {
    const why = TOO_MUCH.test(said) ? "room" : "unreadable";
    const attachments: AttachmentTrouble[] = [];
    if (OF_DOCUMENTS.test(said)) attachments.push({ of: "document", why });
    if (OF_IMAGES.test(said)) attachments.push({ of: "image", why });
    return { ...NO_REASON, attachments };
  }
  // "… 219898 tokens > 200000 maximum", "… 187254 + 20000 > 204798, decrease …"
  const limit = Number(/> ?([1-9]\d{2,11})\b/.exec(said)?.[1]);
  return { ...NO_REASON, tooLong: { limitTokens: Number.isFinite(limit) ? limit : undefined } };
}

/** Aborts its signal when nothing was heard for too long. */
class SilenceWatch {
  private readonly controller = new AbortController();
  private readonly clock: Clock;
  private readonly maxSilenceMs: number;
  private heardMs: number;
  private cancel: () => void;

  constructor(clock: Clock, maxSilenceMs: number) {
    this.clock = clock;
    this.maxSilenceMs = maxSilenceMs;
    this.heardMs = clock.monotonicMs();
    this.cancel = clock.after(maxSilenceMs, () => this.look());
  }

  get signal(): AbortSignal {
    return this.controller.signal;
  }

  heard(): void {
    this.heardMs = this.clock.monotonicMs();
  }

  stop(): void {
    this.cancel();
  }

  private look(): void {
    const leftMs = this.heardMs + this.maxSilenceMs - this.clock.monotonicMs();
    if (leftMs <= 0) this.controller.abort();
    else this.cancel = this.clock.after(leftMs, () => this.look());
  }
}

/** What the answer's headers ask to wait, in seconds or as a date. */
function retryAfter({ headers }: APIError, nowMs: number): number | undefined {
  const text = headers?.get("retry-after") ?? "";
  if (text === "") return undefined;
  const seconds = Number(text);
  if (Number.isFinite(seconds)) return Math.max(0, seconds * 1000);
  const date = Date.parse(text);
  return Number.isNaN(date) ? undefined : Math.max(0, date - nowMs);
}

/** The innermost cause in a few words, such as "connect ECONNREFUSED 127.0.0.1:9". */
function causeOf(error: unknown): string {
  let inner = error;
  for (let depth = 0; depth < 5 && inner instanceof Error && inner.cause !== undefined; depth++)
    inner = inner.cause;
  if (!(inner instanceof Error)) return "unknown cause";
  return inner.message.replace(/\.$/, "") || ((inner as NodeJS.ErrnoException).code ?? inner.name);
}
