/** The logs of the programs that are started here. */
import {
  closeSync,
  existsSync,
  fstatSync,
  mkdirSync,
  openSync,
  readSync,
  renameSync,
  statSync,
} from "node:fs";
import { join } from "node:path";

const MAX_LOG_BYTES = 10 * 1024 * 1024;
const MAX_TAIL_BYTES = 64 * 1024;
const MAX_TAIL_LINES = 10;

export interface LogFile {
  readonly path: string;
  sizeBytes(): number;
}

/** `<data dir>/logs/<name>.log`. A log above 10 MiB becomes `<name>.log.1`, in place of the one before. */
export function openLogFile(dataDir: string, name: string): LogFile {
  const folder = join(dataDir, "logs");
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const path = join(folder, `${name}.log`);
  const sizeBytes = () => (existsSync(path) ? statSync(path).size : 0);
  if (sizeBytes() > MAX_LOG_BYTES) renameSync(path, `${path}.1`);
  return { path, sizeBytes };
}

/** What a program said last since `offset`: its plain lines when there are any, else the messages of its log. */
export function lastLines(path: string, offset: number): string[] {
  const lines = readTail(path, offset)
    .split("\n")
    .filter((line) => line.trim() !== "");
  const plain = lines.filter((line) => !line.startsWith("{"));
  return (plain.length > 0 ? plain : lines.map(messageOfLine)).slice(-MAX_TAIL_LINES);
}

function readTail(path: string, offset: number): string {
  let fd: number;
  try {
    fd = openSync(path, "r");
  } catch {
    return "";
  }
  try {
    const { size } = fstatSync(fd);
    const start = Math.max(Math.min(offset, size), size - MAX_TAIL_BYTES);
    const bytes = Buffer.alloc(size - start);
    const read = readSync(fd, bytes, 0, bytes.length, start);
    return bytes.toString("utf8", 0, read);
  } finally {
    closeSync(fd);
  }
}

function messageOfLine(line: string): string {
  try {
    const { msg, error } = JSON.parse(line) as { msg?: unknown; error?: unknown };
    return [msg, error].filter((part) => typeof part === "string").join(": ") || line;
  } catch {
    return line;
  }
}
