/** Why a copy did not happen, in the words of the contract. */
import type { Logger } from "../kit/log.ts";
import { TarError } from "../kit/tar/tar-entry.ts";
import { FileError, HandError } from "./drivers/driver.ts";
import { HandRefusal } from "./hand-refusal.ts";

const MAX_MESSAGE_CHARS = 4_000;

const FILE_REASONS: Partial<Record<FileError["code"], string>> = {
  not_found: "NOT_FOUND",
  no_space: "LIMIT_EXCEEDED",
};

const FILE_TEXTS: Partial<Record<FileError["code"], string>> = {
  not_found: "there is no such file or directory",
  no_space: "there is no space left",
};

/** `reason` is a code for programs, the message is for people. */
export function copyRefusal(error: unknown, log: Logger): { reason: string; message: string } {
  // Primitives that write have the failures of what they were given as their own.
  const { cause } = error instanceof FileError ? error : {};
  if (cause instanceof TarError || cause instanceof HandRefusal) return copyRefusal(cause, log);
  if (error instanceof HandRefusal) return { reason: error.reason, message: error.message };
  if (error instanceof TarError) return { reason: "INVALID_FIELD", message: cut(error.message) };
  if (error instanceof FileError) {
    const text = FILE_TEXTS[error.code] ?? error.message;
    return { reason: FILE_REASONS[error.code] ?? "INVALID_FIELD", message: cut(`${error.path}: ${text}`) };
  }
  if (error instanceof HandError) return { reason: "HAND_NOT_READY", message: cut(error.message) };
  log.error({ err: error }, "a copy failed");
  return { reason: "INTERNAL", message: "the hand agent failed; its log says more" };
}

function cut(message: string): string {
  return message.slice(0, MAX_MESSAGE_CHARS);
}
