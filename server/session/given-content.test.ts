import { describe, expect, it } from "vitest";
import { givenContent } from "./given-content.ts";

const bytes = (text: string) => Buffer.from(text, "latin1");
const png = bytes("\x89PNG\r\n\x1a\n…");

function outcome(file: Uint8Array, blockType: "image" | "document"): unknown {
  try {
    return givenContent(file, blockType, "f");
  } catch (error) {
    return (error as Error).message;
  }
}

describe("what a file holds is told by its bytes", () => {
  it.each([
    ["image/png", png],
    ["image/jpeg", bytes("\xff\xd8\xff\xe0\0\x10JFIF")],
    ["image/gif", bytes("GIF89a…")],
    ["image/webp", bytes("RIFF\x1a\0\0\0WEBPVP8 ")],
  ])("%s is shown as an image, and as no document", (media_type, file) => {
    expect(outcome(file, "image")).toEqual({ media_type, data: file.toString("base64") });
    expect(outcome(file, "document")).toBe("f: is neither a PDF nor text in UTF-8");
  });

  it("a PDF and text in UTF-8 are shown as documents, and as no image", () => {
    const pdf = bytes("%PDF-1.7\n\xe2\xe3\xcf\xd3");
    expect(outcome(pdf, "document")).toEqual({ media_type: "application/pdf", data: pdf.toString("base64") });
    expect(outcome(Buffer.from("naïve,1\n"), "document")).toEqual({
      media_type: "text/plain",
      text: "naïve,1\n",
    });
    for (const file of [pdf, Buffer.from("text")])
      expect(outcome(file, "image")).toBe("f: is no image in PNG, JPEG, GIF or WebP");
  });

  it.each([
    ["bytes that are no UTF-8", bytes("caf\xe9"), "f: is neither a PDF nor text in UTF-8"],
    ["an archive", bytes("PK\x03\x04\0\0"), "f: is neither a PDF nor text in UTF-8"],
    ["a RIFF that is sound", bytes("RIFF\x1a\0\0\0WAVEfmt "), "f: is neither a PDF nor text in UTF-8"],
    ["nothing but white space", bytes(" \n"), "f: is an empty file"],
    ["nothing", bytes(""), "f: is an empty file"],
  ])("%s is no document", (_, file, why) => {
    expect(outcome(file, "document")).toBe(why);
  });

  it("a part of a larger buffer is read as that part alone", () => {
    const whole = Buffer.from("__text__");
    expect(outcome(new Uint8Array(whole.buffer, whole.byteOffset + 2, 4), "document")).toEqual({
      media_type: "text/plain",
      text: "text",
    });
  });
});
