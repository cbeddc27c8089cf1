import { createServer, type Socket } from "node:net";
import pino from "pino";
import { expect, test } from "vitest";
import { systemClock } from "../kit/clock.ts";
import { eventually } from "../test/kit/eventually.ts";
import type { ServerConfig } from "./config.ts";
import { openDatabase, placeOf } from "./database.ts";

const quiet = pino({ level: "silent" });

test("a database URL's place holds no user and no password", () => {
  expect(placeOf("postgres://u:p@db.example:6432/x")).toBe("db.example:6432");
  expect(placeOf("postgresql://u:p@db.example/x")).toBe("db.example:5432");
  expect(placeOf("postgres://u:p@/x?host=/run/pg")).toBe("/run/pg (port 5432)");
});

test("a database that is not there yet is waited for, until the server is told to stop", async () => {
  let tries = 0;
  const server = createServer((socket: Socket) => {
    tries += 1;
    socket.destroy();
  }).listen(0, "127.0.0.1");
  await eventually(() => server.listening);
  const { port } = server.address() as { port: number };
  const stop = new AbortController();
  const config = {
    TENDON_DATABASE_URL: `postgres://ada:hunter2@127.0.0.1:${port}/x`,
    TENDON_DATABASE_POOL: 3,
  } as ServerConfig;
  const opening = openDatabase(config, systemClock, quiet, stop.signal).catch((error: Error) => error);
  try {
    await eventually(() => tries >= 2);
    stop.abort();
    const failure = (await opening) as Error;
    expect(failure.message).toMatch(`the database at 127.0.0.1:${port} cannot be reached (`);
    expect(failure.message).not.toMatch(/ada|hunter2/);
  } finally {
    stop.abort();
    server.close();
  }
});
