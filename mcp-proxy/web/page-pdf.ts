/** A PDF of the web as a model API takes it: whole, as a `document` block. */
import { pageCountText } from "../../kit/web/page-count.ts";
import { WebFailure } from "./failure.ts";
import { cleaned } from "./page-text.ts";
import type { PdfFacts } from "./pdf-facts.ts";

/** Two of them fit into a request of a model API, which has 32 MB with everything in it, and base64 takes a third more. */
export const MAX_PDF_BYTES = 10 * 1024 * 1024;
/** No model API takes more in a request, and those of models with smaller windows take fewer. */
const MAX_PDF_PAGES = 600;
const MAX_TITLE_CHARS = 200;

/** Throws a WebFailure for what no model reads. */
export function pdfBlocks(
  bytes: Buffer,
  { isWhole, isEncrypted, pages }: PdfFacts,
  url: URL,
  head: readonly string[],
): object[] {
  if (!isWhole) throw unreadable(url, "a PDF that is damaged or broken off", "damaged_pdf");
  if (isEncrypted)
    throw unreadable(url, "an encrypted PDF; models read only those that are not", "encrypted_pdf");
  if (pages !== undefined && pages > MAX_PDF_PAGES)
    throw tooLarge(url, `has ${pages} pages; no more than ${MAX_PDF_PAGES} are read`);
  const count = pages ? pageCountText(pages) : "";
  const told = `A PDF${count === "" ? "" : ` of ${count}`}, ${bytes.length} bytes.`;
  return [
    { type: "text", text: [...head, "", told].join("\n") },
    {
      type: "document",
      source: { type: "base64", media_type: "application/pdf", data: bytes.toString("base64") },
      title: titleOf(url),
      ...(count !== "" && { context: count }),
    },
  ];
}

export function pdfTooLarge(url: URL, bytes: number | undefined): WebFailure {
  const size = bytes === undefined ? "" : `${bytes} bytes, `;
  return tooLarge(url, `is a PDF of ${size}more than the ${MAX_PDF_BYTES} that are read`);
}

function unreadable(url: URL, what: string, outcome: string): WebFailure {
  return new WebFailure("unsupported_content_type", `${url.href} is ${what}`, outcome);
}

function tooLarge(url: URL, why: string): WebFailure {
  return new WebFailure("content_too_large", `${url.href} ${why}`, "content_too_large");
}

/** The name of the file. */
function titleOf({ pathname, hostname }: URL): string {
  const last = pathname.split("/").findLast((part) => part !== "") ?? "";
  let name = last;
  try {
    name = decodeURIComponent(last);
  } catch {
    // Then it is shown as it is written.
  }
  const shown = cleaned(name.slice(0, MAX_TITLE_CHARS)).replaceAll("\n", " ");
  return shown === "" ? hostname : shown;
}
