import { expect, test } from "vitest";
import { EchoService } from "../../test/kit/proto/echo_pb.ts";
import { isTendonError } from "../errors.ts";
import { type DialOptions, dial } from "./dial.ts";

async function failureOf(run: () => Promise<unknown>): Promise<unknown> {
  try {
    await run();
  } catch (error) {
    return error;
  }
  throw new Error("it did not fail");
}

const SECRET = "tk_admin_0123456789abcdef";
const url = "http://127.0.0.1:1";

test.each([`${SECRET}\n`, `${SECRET}\r\nx: y`, `${SECRET} ${SECRET}`, `${SECRET}é`, `${SECRET}\u0000`])(
  "a key that cannot stand in a header is refused without repeating it: %j (S2)",
  async (token) => {
    const options: DialOptions = { url, proxy: {}, token: () => token };
    const connection = dial(options);
    try {
      const echo = connection.client(EchoService);
      for (const run of [
        () => echo.unary({}),
        async () => echo.serverStream({})[Symbol.asyncIterator]().next(),
        async () => echo.clientStream().end(),
        async () => echo.bidi().responses[Symbol.asyncIterator]().next(),
      ]) {
        const error = await failureOf(run);
        expect(isTendonError(error, "UNAUTHENTICATED")).toBe(true);
        expect(String((error as Error).message)).toBe(
          "the key holds a character that no key has (a line break?)",
        );
        expect(JSON.stringify(error) + (error as Error).stack).not.toContain(SECRET);
      }
    } finally {
      connection.close();
    }
  },
);

test("a header that a call may not send is refused by its name alone (S2)", async () => {
  const connection = dial({ url, proxy: {} });
  try {
    const headers = { "x-own": `${SECRET}\n` };
    const error = await failureOf(() => connection.client(EchoService).unary({}, { headers }));
    expect(error).toMatchObject({ reason: "INVALID_FIELD", metadata: { field: "x-own" } });
    expect((error as Error).stack).not.toContain(SECRET);
  } finally {
    connection.close();
  }
});

test("a server that is not there is told in words, with the cause for programs", async () => {
  const connection = dial({ url, proxy: {} });
  try {
    await expect(connection.client(EchoService).unary({})).rejects.toMatchObject({
      reason: "UNAVAILABLE",
      message: "cannot connect to 127.0.0.1:1: connection refused",
      metadata: { cause: "refused" },
    });
  } finally {
    connection.close();
  }
});
