/** PDFs, made here: as older programs write them, objects in the open, or as newer ones do, packed into streams. */
import { randomBytes } from "node:crypto";
import { deflateSync } from "node:zlib";

export interface TestPdf {
  readonly pages?: number;
  /** The tree of pages is in a packed stream of objects. */
  readonly isPacked?: boolean;
  readonly isEncrypted?: boolean;
  /** Of an object that nobody looks at, which cannot be packed. */
  readonly paddingBytes?: number;
}

export function testPdf({
  pages = 1,
  isPacked = false,
  isEncrypted = false,
  paddingBytes = 0,
}: TestPdf = {}): Buffer {
  const kids = Array.from({ length: pages }, (_, i) => `${i + 10} 0 R`).join(" ");
  const objects: [number, string][] = [
    [1, "<< /Type /Catalog /Pages 2 0 R >>"],
    [2, `<< /Type /Pages /Kids [${kids}] /Count ${pages} /Resources << >> >>`],
    ...Array.from({ length: pages }, (_, i): [number, string] => [
      i + 10,
      "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 200 200] >>",
    ]),
  ];
  const file = new PdfFile();
  if (!isPacked) for (const [number, body] of objects) file.object(number, body);
  const packed = new Map<number, number>();
  if (isPacked) {
    const bodies = objects.map(([, body]) => body);
    const offsets = bodies.map((_, i) => bodies.slice(0, i).join(" ").length + (i > 0 ? 1 : 0));
    const head = objects.map(([number], i) => `${number} ${offsets[i]}`).join(" ");
    const content = deflateSync(Buffer.from(`${head} ${bodies.join(" ")}`));
    const words = `/Type /ObjStm /N ${objects.length} /First ${head.length + 1} /Filter /FlateDecode`;
    file.stream(3, words, content);
    for (const [i, [number]] of objects.entries()) packed.set(number, i);
  }
  if (paddingBytes > 0) file.stream(4, "", randomBytes(paddingBytes));
  if (isEncrypted) file.object(5, "<< /Filter /Standard /V 1 /R 2 /O <00> /U <00> /P -4 >>");
  const more = isEncrypted ? " /Encrypt 5 0 R" : "";
  return isPacked ? file.endPacked(packed, more) : file.end(more);
}

class PdfFile {
  private readonly parts: Buffer[] = [Buffer.from("%PDF-1.7\n")];
  private length = 9;
  private readonly offsets = new Map<number, number>();

  object(number: number, body: string): void {
    this.begin(number);
    this.add(`${number} 0 obj\n${body}\nendobj\n`);
  }

  stream(number: number, words: string, content: Buffer): void {
    this.begin(number);
    this.add(`${number} 0 obj\n<< ${words} /Length ${content.length} >>\nstream\n`);
    this.add(content);
    this.add("\nendstream\nendobj\n");
  }

  end(more: string): Buffer {
    const at = this.length;
    const size = Math.max(...this.offsets.keys()) + 1;
    const lines = Array.from({ length: size }, (_, number) => {
      const offset = this.offsets.get(number);
      return offset === undefined
        ? "0000000000 65535 f \n"
        : `${String(offset).padStart(10, "0")} 00000 n \n`;
    });
    this.add(`xref\n0 ${size}\n${lines.join("")}trailer\n<< /Size ${size} /Root 1 0 R${more} >>\n`);
    return this.close(at);
  }

  /** With a table that is a stream itself. `packed`: places in the stream of objects, which is object 3. */
  endPacked(packed: ReadonlyMap<number, number>, more: string): Buffer {
    const at = this.length;
    const size = Math.max(8, ...packed.keys()) + 1;
    const own = 8;
    this.begin(own);
    const table = Buffer.alloc(size * 7);
    for (let number = 0; number < size; number++) {
      const place = packed.get(number);
      const offset = this.offsets.get(number);
      table.writeUInt8(place !== undefined ? 2 : offset !== undefined ? 1 : 0, number * 7);
      table.writeUInt32BE(place !== undefined ? 3 : (offset ?? 0), number * 7 + 1);
      table.writeUInt16BE(place ?? 0, number * 7 + 5);
    }
    const content = deflateSync(table);
    const words = `/Type /XRef /Size ${size} /W [1 4 2] /Root 1 0 R${more} /Filter /FlateDecode`;
    this.stream(own, words, content);
    return this.close(at);
  }

  private close(at: number): Buffer {
    this.add(`startxref\n${at}\n%%EOF\n`);
    return Buffer.concat(this.parts);
  }

  private begin(number: number): void {
    this.offsets.set(number, this.length);
  }

  private add(text: string | Buffer): void {
    const part = typeof text === "string" ? Buffer.from(text, "latin1") : text;
    this.parts.push(part);
    this.length += part.length;
  }
}
