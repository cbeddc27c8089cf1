/**
 * Connects the proxy to hosts of the agent's network, when the server asks for it: dials what the machine's list allows,
 * says how that went, and carries the bytes. TLS, where there is any, is between the proxy and the host.
 */

import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import { create } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { dialFirst } from "../../kit/network/dial-first.ts";
import { parseHost, type Target, targetText } from "../../kit/network/host-name.ts";
import { NameError, type NameResolver } from "../../kit/network/name-resolver.ts";
import { ownAddresses } from "../../kit/network/own-addresses.ts";
import { openTunnel } from "../../kit/tunnel/tunnel-stream.ts";
import { CommandResultSchema, type StartTunnel } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { Tunnel } from "../tunnel/connection.ts";
import type { ReachList } from "./reach-list.ts";

export interface ReachedHostsDeps {
  readonly list: ReachList;
  readonly resolver: Pick<NameResolver, "resolve">;
  readonly clock: Clock;
  readonly log: Logger;
}

const MAX_AT_ONCE = 256;
/** Names resolved and connected; the server waits a little longer. */
const CONNECT_WITHIN_MS = 7_000;

/** Why not: the reason is for programs. */
class ReachRefusal extends Error {
  override readonly name = "ReachRefusal";
  readonly reason: "LIMIT_EXCEEDED" | "ROLE_NOT_ALLOWED" | "UNAVAILABLE";

  constructor(reason: ReachRefusal["reason"], message: string) {
    super(message);
    this.reason = reason;
  }
}

export class ReachedHosts {
  private readonly deps: ReachedHostsDeps;
  private open = 0;

  constructor(deps: ReachedHostsDeps) {
    this.deps = deps;
  }

  /** Answers with a command result of the tunnel's id, and opens the tunnel's stream when that says nothing. */
  start(connection: Tunnel, command: StartTunnel): void {
    this.open += 1;
    void this.run(connection, command).finally(() => {
      this.open -= 1;
    });
  }

  private async run(connection: Tunnel, { tunnelId, host, port }: StartTunnel): Promise<void> {
    const { log } = this.deps;
    const answer = (reason = "", message = "") =>
      connection.send({
        case: "commandResult",
        value: create(CommandResultSchema, { commandId: tunnelId, reason, message }),
      });
    let socket: Socket | undefined;
    try {
      socket = await this.connect(host, port, connection.signal);
      answer();
      const call = connection.client.streamTunnel({ signal: connection.signal });
      await carry(await openTunnel(call, { tunnelId }), socket);
    } catch (error) {
      socket?.destroy();
      if (socket === undefined) {
        const refusal = error instanceof ReachRefusal ? error : undefined;
        answer(refusal?.reason ?? "UNAVAILABLE", refusal?.message ?? `${host}:${port} was not reached`);
      }
      log.info(
        { tunnel: tunnelId, host, port, error: messageOf(error) },
        "a host was not reached for the proxy",
      );
    }
  }

  /** Rejects with a ReachRefusal, or the signal's reason. */
  private async connect(hostname: string, port: number, signal: AbortSignal): Promise<Socket> {
    const { list, clock } = this.deps;
    const host = parseHost(hostname);
    const where = `${hostname}:${port}`;
    if (this.open > MAX_AT_ONCE) {
      throw new ReachRefusal("LIMIT_EXCEEDED", `the hand agent has ${MAX_AT_ONCE} connections open`);
    }
    if (host === undefined || port < 1 || port > 65_535 || !list.allows({ host, port })) {
      throw new ReachRefusal(
        "ROLE_NOT_ALLOWED",
        `the hand agent's machine does not let it reach ${where} (TENDON_HAND_AGENT_REACH)`,
      );
    }
    const limit = new AbortController();
    const stop = clock.after(CONNECT_WITHIN_MS, () =>
      limit.abort(
        new ReachRefusal("UNAVAILABLE", `${where} did not answer within ${CONNECT_WITHIN_MS / 1_000} s`),
      ),
    );
    const signals = AbortSignal.any([signal, limit.signal]);
    try {
      const addresses = await this.addresses({ host, port });
      signals.throwIfAborted();
      return await dialFirst(addresses, port, clock, signals);
    } catch (error) {
      if (error instanceof ReachRefusal || signal.aborted) throw error;
      const { code } = error as NodeJS.ErrnoException;
      throw new ReachRefusal("UNAVAILABLE", `${where} was not reached: ${code ?? "no connection"}`);
    } finally {
      stop();
    }
  }

  /** Resolved once, and what was judged is what is dialled. */
  private async addresses(target: Target): Promise<string[]> {
    const { host } = target;
    const found = host.kind === "address" ? [host.address] : await this.resolve(host.name);
    const allowed = this.deps.list.permitted(target, found, ownAddresses());
    if (allowed.length > 0) return allowed;
    throw new ReachRefusal(
      "ROLE_NOT_ALLOWED",
      `${targetText(target)} leads to an address that nothing is ever sent to (link-local, metadata, or the agent's own loopback)`,
    );
  }

  private async resolve(name: string): Promise<string[]> {
    if (name === "localhost") return ["127.0.0.1", "::1"];
    try {
      return await this.deps.resolver.resolve(name);
    } catch (error) {
      if (error instanceof NameError) throw new ReachRefusal("UNAVAILABLE", error.message);
      throw error;
    }
  }
}

/** Both directions, each to its own end. Resolves when both have ended; rejects, with both closed, when one breaks. */
function carry(tunnel: Duplex, socket: Socket): Promise<void> {
  return new Promise((resolve, reject) => {
    let closed = 0;
    const fail = (error: Error) => {
      tunnel.destroy(error);
      socket.destroy();
      reject(error);
    };
    const onClose = () => {
      closed += 1;
      if (closed === 2) resolve();
      // One that closes before its end was passed on takes the other along.
      else if (!tunnel.readableEnded || !socket.readableEnded) fail(new Error("the other side broke off"));
    };
    for (const each of [tunnel, socket]) each.on("error", fail).once("close", onClose);
    tunnel.pipe(socket);
    socket.pipe(tunnel);
  });
}
