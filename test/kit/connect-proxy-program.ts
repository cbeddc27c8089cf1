/**
 * A corporate proxy, as a program that can run in any network: knows CONNECT and nothing else, perhaps demands a password,
 * and knows its destinations by name alone. Arguments: address to listen on; settings as JSON. It says what it did, a line each.
 */
import http from "node:http";
import net from "node:net";

interface ProxySettings {
  /** "user:password" that it demands. */
  readonly credentials?: string;
  /** "host:port" → path of a unix socket. */
  readonly destinations: Readonly<Record<string, string>>;
}

const [address = "127.0.0.1", text = "{}"] = process.argv.slice(2);
const { credentials, destinations } = JSON.parse(text) as ProxySettings;
const wanted = credentials === undefined ? undefined : `Basic ${Buffer.from(credentials).toString("base64")}`;

const server = http.createServer((_request, response) => {
  response.writeHead(405).end();
});
server.on("connect", (request, socket, head) => {
  const answer = (status: string, headers = "") => {
    process.stdout.write(`${request.url} ${status}\n`);
    socket.end(`HTTP/1.1 ${status}\r\n${headers}\r\n`);
  };
  socket.on("error", () => {});
  if (wanted !== undefined && request.headers["proxy-authorization"] !== wanted) {
    answer("407 Proxy Authentication Required", 'Proxy-Authenticate: Basic realm="corporate"\r\n');
    return;
  }
  const path = destinations[request.url ?? ""];
  if (path === undefined) return answer("403 Forbidden");
  const outer = net.connect(path, () => {
    process.stdout.write(`${request.url} 200\n`);
    socket.write("HTTP/1.1 200 Connection established\r\n\r\n");
    outer.write(head);
    socket.pipe(outer).pipe(socket);
  });
  outer.on("error", () => socket.destroy());
  outer.on("close", () => socket.destroy());
  socket.on("close", () => outer.destroy());
});
server.listen(0, address, () => {
  process.stdout.write(`port ${(server.address() as net.AddressInfo).port}\n`);
});
