/** Structured logs on stderr: one JSON object a line. Secrets never reach a logger; values of these names are cut as a second line of defence. */
import { type Logger, pino } from "pino";

export type { Logger };

export const LOG_LEVELS = ["silent", "fatal", "error", "warn", "info", "debug", "trace"] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

const REDACTED_NAMES = [
  "token",
  "key",
  "secret",
  "password",
  "authorization",
  "apiKey",
  "joinToken",
  "sessionToken",
];

export function createLogger(program: string, level: LogLevel): Logger {
  return pino(
    {
      base: { program, pid: process.pid },
      level,
      redact: { paths: REDACTED_NAMES.flatMap((name) => [name, `*.${name}`]), censor: "[redacted]" },
      timestamp: pino.stdTimeFunctions.isoTime,
    },
    pino.destination({ fd: 2, sync: true }),
  );
}
