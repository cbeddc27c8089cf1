import { createServer, type RequestListener, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { NameResolver } from "../../kit/network/name-resolver.ts";
import { ownAddresses } from "../../kit/network/own-addresses.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import { createCheck, createFetch } from "../outbound/fetch.ts";
import { Outbound } from "../outbound/outbound.ts";
import { OutboundRules, type OutboundRulesOptions } from "../outbound/rules.ts";
import { Webhooks } from "./webhooks.ts";

const SECRET = `whsec_${Buffer.alloc(32, 1).toString("base64")}`;
const undo: (() => void)[] = [];
afterEach(() => {
  for (const run of undo.splice(0)) run();
});

async function receiver(answer: RequestListener): Promise<{ url: string; port: number }> {
  const server: Server = createServer(answer);
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  undo.push(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}/`, port };
}

function webhooks(rules: Partial<OutboundRulesOptions> = {}, secret: string | Error = SECRET): Webhooks {
  const limits = { deny: [], ownAddresses, ownListeners: () => [], ...rules };
  const clock = systemClock;
  const outbound = new Outbound({
    rules: new OutboundRules(limits),
    resolver: new NameResolver({ clock }),
    clock,
  });
  undo.push(() => outbound.close());
  const openSigningSecret = async () => {
    if (secret instanceof Error) throw secret;
    return secret;
  };
  const log = createLogger("test", "silent");
  const ways = { fetch: createFetch(outbound), check: createCheck(outbound) };
  return new Webhooks({ opener: { openSigningSecret }, ...ways, clock, log });
}

const ask = (url: string) => ({
  ...{ workspaceId: "wrkspc_1", endpointId: "whep_1", eventId: "whevt_1", body: "{}" },
  ...{ url, sealedSecrets: ["sealed"] },
});

describe("webhooks", () => {
  test("go to public addresses alone, unless the installation says otherwise; a name is judged by its address", async () => {
    let seen = 0;
    const { port } = await receiver((_, response) => {
      seen += 1;
      response.writeHead(204).end();
    });
    const guarded = webhooks({ privateAllowedBy: "THE_SETTING" });
    const { webhookAttempt: refused } = await guarded.deliver(ask(`http://127.0.0.1:${port}/`));
    expect(refused).toMatchObject({ problem: "address_not_allowed", refused: true });
    expect(refused?.detail).toContain("THE_SETTING");
    for (const host of [
      "localhost",
      "[::1]",
      "[::ffff:127.0.0.1]",
      "10.0.0.1",
      "192.168.1.1",
      "100.64.0.1",
    ]) {
      const { webhookAttempt } = await guarded.deliver(ask(`https://${host}:${port}/`));
      expect([host, webhookAttempt?.problem]).toEqual([host, "address_not_allowed"]);
    }
    expect(seen).toBe(0);
    const open = webhooks();
    expect(await open.deliver(ask(`http://localhost:${port}/`))).toEqual({
      webhookAttempt: { httpStatus: 204 },
    });
    for (const url of ["http://169.254.169.254/", "https://[fe80::1]/", "https://0.0.0.0/"])
      expect((await open.deliver(ask(url))).webhookAttempt).toMatchObject({ refused: true });
    const listener = { addresses: new Set<string>(), here: true, port };
    const own = await webhooks({ ownListeners: () => [listener] }).deliver(ask(`http://127.0.0.1:${port}/`));
    expect(own.webhookAttempt).toMatchObject({ problem: "address_not_allowed", refused: true });
    expect(seen).toBe(1);
  });

  test("follow no redirect, and keep nothing of an answer but its status", async () => {
    const elsewhere = await receiver((_, response) => response.end("elsewhere"));
    const { url } = await receiver((_, response) => {
      response.writeHead(302, { location: elsewhere.url }).end("x".repeat(1_000_000));
    });
    expect(await webhooks().deliver(ask(url))).toEqual({ webhookAttempt: { httpStatus: 302 } });
    const endless = await receiver((_, response) => {
      response.writeHead(200);
      const more = (error?: Error | null) => {
        if (!error && !response.destroyed) response.write("x".repeat(65_536), more);
      };
      response.on("error", () => {});
      more();
    });
    expect(await webhooks().deliver(ask(endless.url))).toEqual({ webhookAttempt: { httpStatus: 200 } });
  });

  test("say what went wrong without repeating anything of the URL but its host", async () => {
    const { port } = await receiver((request) => request.socket.destroy());
    const broken = await webhooks().deliver(ask(`http://127.0.0.1:${port}/path?key=canary`));
    expect(broken.webhookAttempt).toMatchObject({ problem: "unreachable", refused: false });
    expect(JSON.stringify(broken)).not.toContain("canary");
    const unknown = await webhooks({}, new CredentialRefusal("KEY_UNKNOWN", "no such key")).deliver(
      ask("https://a.b/"),
    );
    expect(unknown).toEqual({ reason: "KEY_UNKNOWN", message: "no such key" });
    expect((await webhooks({}, "no signing secret").deliver(ask("https://a.b/"))).reason).toBe("SEAL_BROKEN");
  });

  test("that are on their way when the proxy stops are told; later ones are not sent", async () => {
    let arrived = () => {};
    let answer = () => {};
    const arrival = new Promise<void>((resolve) => {
      arrived = resolve;
    });
    const { url } = await receiver((_, response) => {
      answer = () => response.end();
      arrived();
    });
    const hooks = webhooks();
    const running = hooks.deliver(ask(url));
    await arrival;
    const resting = hooks.rest();
    expect(await hooks.deliver(ask(url))).toMatchObject({ reason: "DRAINING" });
    answer();
    expect(await running).toEqual({ webhookAttempt: { httpStatus: 200 } });
    await resting;
  });
});
