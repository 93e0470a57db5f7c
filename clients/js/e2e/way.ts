/** The way to a real gateway, which a test cuts and turns to another instance. Servers are named by the environment. */
import { readFileSync } from "node:fs";
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";

const named = (name: string): string => process.env[name] ?? (() => { throw new Error(`${name} is not set`); })();
/** Instances over one journal, of which one may be killed, by its process group; the file that their tools write to. */
export const [A, B, MORTAL] = [named("LEGATO_A"), named("LEGATO_B"), named("LEGATO_MORTAL")];
export const MORTAL_GROUP = Number(named("LEGATO_MORTAL_GROUP"));
export const ledger = (): string[] => readFileSync(named("LEGATO_LEDGER"), { encoding: "utf8", flag: "a+" }).split("\n").slice(0, -1);

export class Way implements AsyncDisposable {
  readonly #links = new Set<Socket>();
  readonly #server: Server;
  to: string;

  constructor(to: string) {
    this.to = to;
    this.#server = createServer((socket) => this.#pass(socket));
  }

  async open(): Promise<this> {
    await new Promise<void>((ready) => this.#server.listen(0, "127.0.0.1", ready));
    return this;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Resets every connection now; later ones lead to `to`. */
  cut(to: string): void {
    this.to = to;
    for (const link of this.#links) link.resetAndDestroy();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut(this.to);
    await new Promise((closed) => this.#server.close(closed));
  }

  #pass(socket: Socket): void {
    const { hostname, port } = new URL(this.to);
    const upstream = connect(Number(port), hostname);
    for (const [one, other] of [[socket, upstream], [upstream, socket]] as const) {
      this.#links.add(one);
      one.on("data", (data) => other.write(data));
      one.on("error", () => other.destroy());
      one.on("close", () => (this.#links.delete(one), other.destroy()));
    }
  }
}
