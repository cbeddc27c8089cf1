import { once } from "node:events";
import { connect } from "node:net";
import { expect, test } from "vitest";
import { systemClock, within } from "../../kit/clock.ts";
import { redirectAnswerOf } from "./redirect-answer.ts";
import { listenForRedirect } from "./redirect-listener.ts";

/** Below the time after which an HTTP server ends a connection that says nothing by itself. */
const SOON_MS = 20_000;

test("the first answer counts, the page arrives, and a connection that the browser never used is not waited for", async () => {
  const listener = await listenForRedirect(0);
  const { port } = new URL(listener.redirectUri);
  const unused = connect(Number(port), "127.0.0.1");
  await once(unused, "connect");
  // How it ends does not matter.
  unused.on("error", () => {});
  const waiting = listener.answerWith("s");
  const page = await fetch(`${listener.redirectUri}?state=s&code=first`);
  expect(await page.text()).toContain("this window can be closed");
  expect((await fetch(`${listener.redirectUri}?state=s&code=second`)).status).toBe(400);
  expect(await waiting).toEqual({ state: "s", code: "first", iss: "", error: "" });
  await within(systemClock, SOON_MS, listener.close(), () => new Error("it waits for the browser"));
  unused.destroy();
});

test("a name of somebody else's that leads to this machine is refused", async () => {
  const listener = await listenForRedirect(0);
  const { port } = new URL(listener.redirectUri);
  const socket = connect(Number(port), "127.0.0.1");
  socket.write("GET /callback?state=s&code=c HTTP/1.1\r\nhost: evil.example.com\r\n\r\n");
  const [answer] = await once(socket, "data");
  expect(String(answer)).toMatch(/^HTTP\/1.1 400 /);
  socket.destroy();
  await listener.close();
});

const PLACE = "http://127.0.0.1:1/callback";

test.each([
  [`${PLACE}?state=s&code=c&iss=i`, { state: "s", code: "c", iss: "i", error: "" }],
  [`${PLACE}?state=s&error=access_denied`, { state: "s", code: "", iss: "", error: "access_denied" }],
  [`${PLACE}?code=c`, undefined],
  [`${PLACE}?state=s`, undefined],
  [`${PLACE}?state=s&code=c&error=e`, undefined],
  [`${PLACE}?state=s&code=c&code=d`, undefined],
  ["http://127.0.0.1:2/callback?state=s&code=c", undefined],
  ["http://127.0.0.1:1/other?state=s&code=c", undefined],
  ["state=s&code=c", undefined],
])("the address %s is read as an answer, or as none", (text, answer) => {
  expect(redirectAnswerOf(text, PLACE)).toEqual(answer);
});
