/** A tar archive of empty directories with an owner: what the engine's archive call takes. */

const BLOCK_BYTES = 512;

export function tarOfDirectories(names: readonly string[], owner: { uid: number; mode: number }): Buffer {
  return Buffer.concat([...names.map((name) => entryOf(name, owner)), Buffer.alloc(2 * BLOCK_BYTES)]);
}

function entryOf(name: string, { uid, mode }: { uid: number; mode: number }): Buffer {
  const block = Buffer.alloc(BLOCK_BYTES);
  block.write(`${name}/`, 0, 100);
  block.write(octal(mode, 7), 100);
  block.write(octal(uid, 7), 108);
  block.write(octal(uid, 7), 116);
  block.write(octal(0, 11), 124);
  block.write(octal(0, 11), 136);
  block.write("        ", 148); // the checksum counts as spaces
  block.write("5", 156);
  block.write("ustar\0" + "00", 257);
  block.write(
    `${octal(
      block.reduce((sum, byte) => sum + byte, 0),
      6,
    )}\0 `,
    148,
  );
  return block;
}

function octal(value: number, digits: number): string {
  return value.toString(8).padStart(digits, "0");
}
