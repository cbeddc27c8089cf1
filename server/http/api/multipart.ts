/** Bodies of the form `multipart/form-data`, read part by part: nothing of a file is held but what is on its way. */
import type { IncomingMessage } from "node:http";
import { Busboy, type BusboyFileStream } from "@fastify/busboy";
import { invalidField, messageOf, TendonError } from "../../../kit/errors.ts";
import { FormDigest } from "./form-digest.ts";

export type FormPart =
  | { readonly kind: "field"; readonly name: string; readonly value: string }
  | {
      readonly kind: "file";
      readonly name: string;
      /** As it was sent, with its directories; empty for none. */
      readonly filename: string;
      readonly mimeType: string;
      /** To be read before the next part is asked for; what is left of it is passed over. */
      readonly bytes: AsyncIterable<Uint8Array>;
    };

export interface FormLimits {
  readonly files: number;
  readonly fields: number;
}

/** Parts of these names are files also when they name none. */
const FILES = /^files?(\[\])?$/;
const MAX_FIELD_BYTES = 64 * 1024;
const MAX_DROPPED_BYTES = 128 * 1024 * 1024;

/**
 * INVALID_FIELD for what is no such form or has more parts than wanted, CANCELLED when it breaks off. Ends after the last part,
 * once `onWhole` has been told the digest of all parts: the same for forms that differ in what separates their parts alone.
 * What that rejects with ends the form.
 */
export async function* readForm(
  request: IncomingMessage,
  limits: FormLimits,
  onWhole: (digest: string) => Promise<void>,
): AsyncGenerator<FormPart> {
  const parts = new PartQueue();
  const digest = new FormDigest();
  const parser = parserOf(request, limits, parts);
  const brokeOff = () => {
    if (!request.complete) parts.fail(new TendonError("CANCELLED", "the request broke off"));
  };
  request.once("close", brokeOff);
  request.pipe(parser);
  try {
    for (;;) {
      const part = await parts.next();
      if (part === undefined) return await onWhole(digest.end());
      if (part.kind === "field") {
        digest.field(part);
        yield part;
      } else {
        const { stream, ...facts } = part;
        yield { ...facts, bytes: digest.file(facts, parts.reading(stream)) };
        stream.resume();
      }
    }
  } finally {
    request.off("close", brokeOff);
    request.unpipe(parser);
    parser.removeAllListeners();
    parser.on("error", () => {});
    drop(request);
  }
}

type QueuedPart =
  | Extract<FormPart, { kind: "field" }>
  | (Omit<Extract<FormPart, { kind: "file" }>, "bytes"> & { readonly stream: BusboyFileStream });

function parserOf(request: IncomingMessage, limits: FormLimits, parts: PartQueue) {
  const contentType = request.headers["content-type"] ?? "";
  if (!/^multipart\/form-data\s*;/i.test(contentType))
    throw invalidField("body", "must be of the type multipart/form-data");
  try {
    const parser = new Busboy({
      headers: { ...request.headers, "content-type": contentType },
      preservePath: true,
      limits: { ...limits, fieldSize: MAX_FIELD_BYTES },
      isPartAFile: (name, _type, filename) => filename !== undefined || FILES.test(name ?? ""),
    });
    parser.on("file", (name, stream, filename: string | undefined, _encoding, mimeType) =>
      parts.add({ kind: "file", name, filename: filename ?? "", mimeType, stream }),
    );
    parser.on("field", (name, value, _nameCut, isCut) => {
      if (isCut) parts.fail(invalidField(name, `must have at most ${MAX_FIELD_BYTES} bytes`));
      else parts.add({ kind: "field", name, value });
    });
    parser.on("filesLimit", () => parts.fail(invalidField("body", `has more than ${limits.files} files`)));
    parser.on("fieldsLimit", () => parts.fail(invalidField("body", `has more than ${limits.fields} fields`)));
    parser.on("error", (error) => parts.fail(invalidField("body", `is no whole form: ${messageOf(error)}`)));
    parser.on("finish", () => parts.end());
    return parser;
  } catch (error) {
    throw invalidField("body", `is no form: ${messageOf(error)}`);
  }
}

/** Between a parser that tells and a reader that asks. Few are ever in it: a file holds the parser back until it is read. */
class PartQueue {
  private readonly parts: QueuedPart[] = [];
  private failure: TendonError | undefined;
  private ended = false;
  private wake = () => {};
  private stream: BusboyFileStream | undefined;

  add(part: QueuedPart): void {
    // An error of a stream is that of the form.
    if (part.kind === "file") part.stream.on("error", () => {});
    this.parts.push(part);
    this.wake();
  }

  end(): void {
    this.ended = true;
    this.wake();
  }

  fail(error: TendonError): void {
    if (this.ended) return;
    this.failure ??= error;
    this.stream?.destroy(this.failure);
    this.wake();
  }

  async next(): Promise<QueuedPart | undefined> {
    for (;;) {
      if (this.failure !== undefined) throw this.failure;
      const part = this.parts.shift();
      if (part !== undefined || this.ended) return part;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }

  async *reading(stream: BusboyFileStream): AsyncGenerator<Uint8Array> {
    this.stream = stream;
    try {
      for await (const bytes of stream as AsyncIterable<Uint8Array>) yield bytes;
    } catch (error) {
      throw this.failure ?? invalidField("body", `is no whole form: ${messageOf(error)}`);
    } finally {
      this.stream = undefined;
    }
    if (this.failure !== undefined) throw this.failure;
  }
}

/** Whoever is still sending does not hear an answer: the rest is read and dropped, within reason. */
function drop(request: IncomingMessage): void {
  if (request.complete || request.destroyed) return;
  let bytes = 0;
  request.on("data", (chunk: Buffer) => {
    bytes += chunk.length;
    if (bytes > MAX_DROPPED_BYTES) request.destroy();
  });
  request.on("error", () => {});
}
