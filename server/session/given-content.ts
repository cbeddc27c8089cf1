/** What a file holds, as a model can be shown it (pure). Its bytes say so: the type that it was uploaded with may be anything. */
import { invalidField } from "../../kit/errors.ts";

export type GivenContent =
  | { readonly media_type: string; readonly data: string }
  | { readonly media_type: "text/plain"; readonly text: string };

/** INVALID_FIELD for bytes that the block cannot show. */
export function givenContent(
  bytes: Uint8Array,
  blockType: "image" | "document",
  field: string,
): GivenContent {
  const { buffer, byteOffset, byteLength } = bytes;
  const file = Buffer.from(buffer, byteOffset, byteLength);
  const mediaType = mediaTypeOf(file);
  if (mediaType?.startsWith("image/") === (blockType === "image") && mediaType !== undefined)
    return { media_type: mediaType, data: file.toString("base64") };
  if (blockType === "image") throw invalidField(field, "is no image in PNG, JPEG, GIF or WebP");
  const text = mediaType === undefined ? utf8Of(file) : undefined;
  if (text === undefined) throw invalidField(field, "is neither a PDF nor text in UTF-8");
  if (text.trim() === "") throw invalidField(field, "is an empty file");
  return { media_type: "text/plain", text };
}

function mediaTypeOf(file: Buffer): string | undefined {
  const begins = (text: string, at = 0) => file.toString("latin1", at, at + text.length) === text;
  if (begins("%PDF-")) return "application/pdf";
  if (begins("\x89PNG\r\n\x1a\n")) return "image/png";
  if (begins("\xff\xd8\xff")) return "image/jpeg";
  if (begins("GIF87a") || begins("GIF89a")) return "image/gif";
  return begins("RIFF") && begins("WEBP", 8) ? "image/webp" : undefined;
}

/** Postgres and the model's API have no use for NUL: a file with one is no text. */
function utf8Of(file: Buffer): string | undefined {
  if (file.includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(file);
  } catch {
    return undefined;
  }
}
