/**
 * What a block of a request costs, before the model has said so (pure). A weight is a number of bytes of text; how many
 * tokens that is shows in the usage that the model reports. Images and documents weigh what they usually cost.
 */
import { pageCountOf } from "../../../kit/web/page-count.ts";
import { isObject, stringOf } from "../../event-payload.ts";

const IMAGE_WEIGHT = 6_000;
/** Of a page, which a model is shown as text and as an image. */
const PAGE_WEIGHT = 7_000;
/** Where nobody says how many pages there are: a document has many more bytes than its tokens' text would have. */
const DOCUMENT_SHARE = 0.1;

export function blockWeight(block: string): number {
  return block.includes(`"base64"`) ? valueWeight(parsed(block)) : Buffer.byteLength(block);
}

function parsed(block: string): unknown {
  try {
    return JSON.parse(block);
  } catch {
    return block;
  }
}

function valueWeight(value: unknown): number {
  if (Array.isArray(value)) return value.reduce((sum: number, inner) => sum + valueWeight(inner) + 1, 2);
  if (!isObject(value)) return Buffer.byteLength(JSON.stringify(value) ?? "");
  const { type, source } = value;
  if (isObject(source) && source.type === "base64") {
    const bytes = typeof source.data === "string" ? source.data.length : 0;
    if (type === "image") return IMAGE_WEIGHT;
    const pages = pageCountOf(stringOf(value.context));
    return pages === undefined ? Math.max(IMAGE_WEIGHT, bytes * DOCUMENT_SHARE) : pages * PAGE_WEIGHT;
  }
  return Object.entries(value).reduce((sum, [name, inner]) => sum + name.length + 4 + valueWeight(inner), 2);
}
