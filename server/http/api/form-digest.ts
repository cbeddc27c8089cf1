/** Tells forms apart by their parts, whatever separates these: a client that sends one again encodes it anew. */
import { createHash } from "node:crypto";

export class FormDigest {
  private readonly parts = createHash("sha256");
  /** Files that were not read to their ends. */
  private unread = 0;

  field({ name, value }: { readonly name: string; readonly value: string }): void {
    this.part("field", name, value);
  }

  /** The same bytes, looked at as they are read. */
  async *file(
    {
      name,
      filename,
      mimeType,
    }: { readonly name: string; readonly filename: string; readonly mimeType: string },
    bytes: AsyncIterable<Uint8Array>,
  ): AsyncGenerator<Uint8Array> {
    this.unread += 1;
    const hash = createHash("sha256");
    for await (const chunk of bytes) {
      hash.update(chunk);
      yield chunk;
    }
    this.part("file", name, filename, mimeType, hash.digest("hex"));
    this.unread -= 1;
  }

  /** After the last part. */
  end(): string {
    if (this.unread > 0) throw new Error("a file of a form was not read to its end");
    return this.parts.digest("base64url");
  }

  private part(...texts: readonly string[]): void {
    this.parts.update(JSON.stringify(texts));
  }
}
