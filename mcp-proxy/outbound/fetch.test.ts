/** Requests of the platform by the rules: the address that was checked is the one that is dialled. */
import dgram from "node:dgram";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer, type RequestListener } from "node:http";
import { createServer as createTlsServer } from "node:https";
import { type AddressInfo, connect, createServer as createTcpServer } from "node:net";
import { afterEach, describe, expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { NameResolver } from "../../kit/network/name-resolver.ts";
import { eventually } from "../../test/kit/eventually.ts";
import { rulesWith } from "../../test/kit/outbound-rules.ts";
import { createCertificates } from "../../test/kit/test-certificates.ts";
import { createFetch } from "./fetch.ts";
import { Outbound } from "./outbound.ts";
import { OutboundRefusal } from "./refusal.ts";
import type { OutboundRules } from "./rules.ts";

const closers: (() => Promise<void> | void)[] = [];
afterEach(async () => {
  for (const close of closers.splice(0).reverse()) await close();
});

async function listening(handler: RequestListener): Promise<number> {
  const server = createServer(handler);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  return (server.address() as AddressInfo).port;
}

/** A name server that answers each question for an IPv4 address with the next of these, the last again and again; with none it knows no address. */
async function nameServer(answers: readonly string[]): Promise<{ address: string; asked: () => number }> {
  const socket = dgram.createSocket("udp4");
  let asked = 0;
  socket.on("message", (question, from) => {
    const end = question.indexOf(0, 12) + 5;
    const isV4 = question.readUInt16BE(end - 4) === 1 && answers.length > 0;
    const head = Buffer.from(question.subarray(0, end));
    head.writeUInt16BE(0x8180, 2);
    head.writeUInt16BE(isV4 ? 1 : 0, 6);
    head.fill(0, 8, 12);
    if (!isV4) return socket.send(head, from.port, from.address);
    const bytes = answers[Math.min(asked, answers.length - 1)]!.split(".").map(Number);
    asked += 1;
    const record = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, ...bytes]);
    socket.send(Buffer.concat([head, record]), from.port, from.address);
  });
  socket.bind(0, "127.0.0.1");
  await once(socket, "listening");
  closers.push(() => new Promise<void>((resolve) => socket.close(() => resolve())));
  return { address: `127.0.0.1:${socket.address().port}`, asked: () => asked };
}

/** Leads every connection to this port, but for hosts that it refuses. */
async function corporateProxy(port: number): Promise<{ url: string; asked: string[] }> {
  const asked: string[] = [];
  const corporate = createServer();
  corporate.on("connect", (request, socket) => {
    asked.push(request.url ?? "");
    if (request.url?.startsWith("refused")) return socket.end("HTTP/1.1 403 Forbidden\r\n\r\n");
    const through = connect(port, "127.0.0.1", () => {
      socket.write("HTTP/1.1 200 OK\r\n\r\n");
      through.pipe(socket).pipe(through);
    });
    for (const each of [through, socket]) each.on("error", () => {});
  });
  corporate.listen(0, "127.0.0.1");
  await once(corporate, "listening");
  closers.push(() => void corporate.close());
  return { url: `http://127.0.0.1:${(corporate.address() as AddressInfo).port}`, asked };
}

function fetchWith({ servers, rules = rulesWith() }: { servers?: string[]; rules?: OutboundRules } = {}) {
  const resolver = new NameResolver({
    clock: systemClock,
    hostsFile: "/dev/null",
    ...(servers && { servers }),
  });
  const outbound = new Outbound({ rules, resolver, clock: systemClock });
  closers.push(() => outbound.close());
  return createFetch(outbound);
}

async function refusal(promise: Promise<unknown>): Promise<OutboundRefusal> {
  const error = await promise.then(
    () => undefined,
    (thrown: unknown) => thrown,
  );
  if (error instanceof OutboundRefusal) return error;
  throw new Error(`expected a refusal, got ${error}`);
}

describe("requests", () => {
  test("reach a loopback server, and bring back status, headers and a body that streams", async () => {
    const port = await listening((request, response) => {
      response.writeHead(201, { "x-seen": `${request.method} ${request.headers["x-sent"]}` });
      request.pipe(response);
    });
    const fetch = fetchWith();
    for (const host of ["127.0.0.1", "localhost"]) {
      const answer = await fetch(`http://${host}:${port}/a`, {
        method: "POST",
        headers: { "x-sent": "yes" },
        body: "grüße",
      });
      expect([answer.status, answer.headers.get("x-seen"), await answer.text()]).toEqual([
        201,
        "POST yes",
        "grüße",
      ]);
    }
  });

  test.each([
    "http://169.254.169.254/latest/meta-data",
    "http://2852039166/latest/meta-data",
    "http://0xa9fea9fe/",
    "http://0251.0376.0251.0376/",
    "http://[::ffff:169.254.169.254]/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://0/",
    "https://[fe80::1]/",
  ])("%s is refused however it is spelled, without a connection", async (url) => {
    expect((await refusal(fetchWith()(url))).reason).toBe("address_not_allowed");
  });

  test.each([
    ["switches to another protocol", "101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x"],
    ["says that it switches, and not to what", "101 Switching Protocols"],
    ["has a status that is none", "600 None\r\nContent-Length: 0"],
  ])("whose answer %s fail at once, and leave no connection", async (_, head) => {
    const gone: Promise<unknown>[] = [];
    const server = createTcpServer((socket) => {
      gone.push(once(socket, "close"));
      socket.on("error", () => {}).once("data", () => socket.write(`HTTP/1.1 ${head}\r\n\r\n`));
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    closers.push(() => void server.close());
    const { port } = server.address() as AddressInfo;
    expect((await refusal(fetchWith()(`http://127.0.0.1:${port}/`))).reason).toBe("unreachable");
    expect(await Promise.all(gone)).toHaveLength(1);
  });

  test("with a user, or in another scheme, are refused, and repeat nothing of the URL but its host", async () => {
    const fetch = fetchWith();
    for (const url of [
      "http://user:canary@127.0.0.1/",
      "ftp://127.0.0.1/canary",
      "file:///etc/passwd",
      "canary",
    ]) {
      const { reason, message } = await refusal(fetch(url));
      expect(reason).toBe("bad_url");
      expect(message).not.toContain("canary");
    }
  });

  test("go to the address that was checked, also when the name leads elsewhere a moment later (DNS rebinding)", async () => {
    const port = await listening((_, response) => void response.end("the one that was checked"));
    const names = await nameServer(["127.0.0.1", "169.254.169.254"]);
    const fetch = fetchWith({ servers: [names.address] });
    const answer = await fetch(`http://rebind.example.com:${port}/`, { headers: { connection: "close" } });
    expect(await answer.text()).toBe("the one that was checked");
    expect(names.asked()).toBe(1);
    // The next connection asks anew, and is judged anew.
    const next = fetch(`http://rebind.example.com:${port}/`, { headers: { connection: "close" } });
    expect((await refusal(next)).reason).toBe("address_not_allowed");
  });

  test("follow redirects only where they were told to, on the same origin, and are checked again there", async () => {
    const port = await listening((request, response) => {
      const to: Record<string, [number, string]> = {
        "/here": [307, "/there"],
        "/loop": [307, "/loop"],
        "/metadata": [307, "http://169.254.169.254/canary"],
        "/other": [308, `http://localhost:${(request.socket.address() as AddressInfo).port}/there`],
        "/as-get": [302, "/there"],
      };
      const redirect = to[request.url ?? ""];
      if (redirect === undefined)
        return response.end(`${request.method} ${request.url} ${request.headers.authorization}`);
      response.writeHead(redirect[0], { location: redirect[1] }).end();
    });
    const fetch = fetchWith();
    const get = (path: string, redirect: "error" | "same-origin") =>
      fetch(`http://127.0.0.1:${port}${path}`, {
        method: "POST",
        headers: { authorization: "canary" },
        body: "x",
        redirect,
      });
    expect(await (await get("/here", "same-origin")).text()).toBe("POST /there canary");
    for (const path of ["/here", "/metadata"])
      expect((await refusal(get(path, "error"))).reason).toBe("redirect_refused");
    for (const path of ["/loop", "/metadata", "/other", "/as-get"]) {
      const { reason, message } = await refusal(get(path, "same-origin"));
      expect(reason).toBe("redirect_refused");
      expect(message).not.toContain("canary");
    }
  });

  test("that hang, however many, hold up no other to the same host", async () => {
    let held = 0;
    const port = await listening((request, response) => {
      if (request.url === "/held") held += 1;
      else response.end("here");
    });
    const fetch = fetchWith();
    const stop = new AbortController();
    const hanging = Array.from({ length: 300 }, () =>
      fetch(`http://127.0.0.1:${port}/held`, { signal: AbortSignal.any([stop.signal]) }).catch(
        () => "given up",
      ),
    );
    await eventually(() => held === hanging.length);
    expect(await (await fetch(`http://127.0.0.1:${port}/other`)).text()).toBe("here");
    stop.abort();
    expect(new Set(await Promise.all(hanging))).toEqual(new Set(["given up"]));
  });

  test("that nobody answers, or that break, fail as unreachable; one that is given up ends at once", async () => {
    const port = await listening((request, response) => {
      if (request.url === "/break") response.destroy();
      // Anything else is never answered.
    });
    const fetch = fetchWith();
    expect((await refusal(fetch("http://127.0.0.1:1/"))).reason).toBe("unreachable");
    expect((await refusal(fetch(`http://127.0.0.1:${port}/break`))).reason).toBe("unreachable");
    const given = new AbortController();
    const waiting = fetch(`http://127.0.0.1:${port}/`, { signal: given.signal });
    given.abort(new Error("given up"));
    await expect(waiting).rejects.toThrow("given up");
  });
});

test("a name that is public and then private leads nowhere the second time (DNS rebinding)", async () => {
  const port = await listening((request, response) => void response.end(`to ${request.headers.host}`));
  const corporate = await corporateProxy(port);
  const names = await nameServer(["93.184.216.34", "127.0.0.1"]);
  const resolver = new NameResolver({
    clock: systemClock,
    hostsFile: "/dev/null",
    servers: [names.address],
  });
  const outbound = new Outbound({
    rules: rulesWith({ publicOnly: true }),
    resolver,
    clock: systemClock,
    proxy: { httpsProxy: corporate.url },
  });
  closers.push(() => outbound.close());
  const get = () => createFetch(outbound)("http://rebind.example.com/", { headers: { connection: "close" } });
  expect(await (await get()).text()).toBe("to rebind.example.com");
  expect((await refusal(get())).reason).toBe("address_not_allowed");
  expect(corporate.asked).toEqual(["rebind.example.com:80"]);
});

test("over TLS the certificate must be trusted and be the host's; for one that is not trusted the setting is named", async () => {
  const certificates = await createCertificates();
  closers.push(() => certificates.remove());
  const { certFile, keyFile } = await certificates.issue("far");
  const server = createTlsServer(
    { cert: readFileSync(certFile), key: readFileSync(keyFile) },
    (_, response) => void response.end("over TLS"),
  );
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  closers.push(() => {
    server.closeAllConnections();
    server.close();
  });
  const { port } = server.address() as AddressInfo;
  const names = await nameServer(["127.0.0.1"]);
  const fetchTrusting = (ca?: string[]) => {
    const resolver = new NameResolver({
      clock: systemClock,
      hostsFile: "/dev/null",
      servers: [names.address],
    });
    const outbound = new Outbound({ rules: rulesWith(), resolver, clock: systemClock, ca });
    closers.push(() => outbound.close());
    return createFetch(outbound);
  };
  const trusting = fetchTrusting([readFileSync(certificates.caFile, "utf8")]);
  for (const host of ["localhost", "127.0.0.1", "server.test"]) {
    expect(await (await trusting(`https://${host}:${port}/`)).text()).toBe("over TLS");
  }
  expect((await refusal(fetchTrusting()(`https://localhost:${port}/`))).message).toMatch(
    /(UNABLE_TO_VERIFY|SELF_SIGNED).*TENDON_PROXY_UPSTREAM_CA_FILE/,
  );
  expect((await refusal(trusting(`https://other.test:${port}/`))).message).toMatch(
    /ERR_TLS_CERT_ALTNAME_INVALID/,
  );
});

test("behind a corporate proxy it is that one which connects, and what this machine knows of the host is judged before", async () => {
  const port = await listening((request, response) => void response.end(`${request.headers.host} by proxy`));
  const { asked, url: httpsProxy } = await corporateProxy(port);
  const names = await nameServer(["10.0.0.1"]);
  const behind = (servers: string[], deny: string[] = []) => {
    const resolver = new NameResolver({ clock: systemClock, hostsFile: "/dev/null", servers });
    const proxy = { httpsProxy, noProxy: "direct.example.com" };
    const outbound = new Outbound({ rules: rulesWith({ deny }), resolver, clock: systemClock, proxy });
    closers.push(() => outbound.close());
    return createFetch(outbound);
  };
  const fetch = behind([names.address]);
  const answer = await fetch("http://inside.example.com/", { headers: { connection: "close" } });
  expect(await answer.text()).toBe("inside.example.com by proxy");
  expect((await refusal(fetch("http://refused.example.com/"))).message).toMatch(/status 403/);
  expect(asked).toEqual(["inside.example.com:80", "refused.example.com:80"]);
  // A name that only the corporate proxy knows: https alone, and not what is denied.
  const nobody = behind([(await nameServer([])).address], ["evil.example.com"]);
  expect((await refusal(nobody("http://outside.example.com/"))).reason).toBe("plain_http");
  expect((await refusal(nobody("https://evil.example.com/"))).reason).toBe("host_denied");
  expect((await refusal(nobody("https://169.254.169.254/"))).reason).toBe("address_not_allowed");
  expect(asked).toHaveLength(2);
  expect((await refusal(nobody("https://refused.example.org/"))).message).toMatch(/status 403/);
});
