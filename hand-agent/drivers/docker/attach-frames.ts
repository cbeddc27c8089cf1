/** The engine's framing of a process's two outputs on one connection: an 8-byte head (1 or 2, length) before each piece. */

const HEAD_BYTES = 8;

export type Output = "stdout" | "stderr";

export class AttachFrames {
  private readonly onPiece: (output: Output, piece: Buffer) => void;
  private head = Buffer.alloc(0);
  private output: Output = "stdout";
  private left = 0;

  constructor(onPiece: (output: Output, piece: Buffer) => void) {
    this.onPiece = onPiece;
  }

  push(chunk: Buffer): void {
    for (let at = 0; at < chunk.length; ) {
      if (this.left > 0) {
        const piece = chunk.subarray(at, at + this.left);
        at += piece.length;
        this.left -= piece.length;
        this.onPiece(this.output, piece);
        continue;
      }
      const more = chunk.subarray(at, at + HEAD_BYTES - this.head.length);
      this.head = Buffer.concat([this.head, more]);
      at += more.length;
      if (this.head.length < HEAD_BYTES) return;
      this.output = this.head[0] === 2 ? "stderr" : "stdout";
      this.left = this.head.readUInt32BE(4);
      this.head = Buffer.alloc(0);
    }
  }
}
