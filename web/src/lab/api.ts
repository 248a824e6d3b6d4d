/** Requests to the lab's server; an error is shown as the server says it. */

/** An error as the server says it: what is wrong, where, and what to do. */
export class ApiError extends Error {
  constructor(
    message: string,
    readonly where: string | null = null,
    readonly todo: string | null = null,
    readonly status = 0,
  ) {
    super(message);
  }
}

const UNREACHABLE = new ApiError(
  "The lab does not answer.",
  null,
  "Is `heed lab` still running in its terminal?",
);

/** The path of a run or study in an address: its slashes stay. */
export function encodeName(name: string): string {
  return name.split("/").map(encodeURIComponent).join("/");
}

/** An address with a query; values that are undefined or null are left out. */
export function withQuery(
  path: string,
  query: Record<string, string | number | boolean | null | undefined>,
): string {
  const set = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
  const text = new URLSearchParams(set.map(([key, value]) => [key, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}

export function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return request<T>("GET", path, undefined, signal);
}

/** An answer of bytes, such as the weights of a head, and its headers. */
export async function getBytes(
  path: string,
  signal?: AbortSignal,
): Promise<{ content: ArrayBuffer; headers: Headers }> {
  const response = await send("GET", path, undefined, signal);
  return { content: await response.arrayBuffer(), headers: response.headers };
}

/** An answer of bytes that comes in parts: `onPart` gets all that is here, each time there is more. */
export async function readBytes(
  path: string,
  onPart: (content: Uint8Array, headers: Headers) => void,
  signal?: AbortSignal,
): Promise<void> {
  const response = await send("GET", path, undefined, signal);
  const reader = response.body!.getReader();
  const parts: Uint8Array[] = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    parts.push(value);
    size += value.length;
    const content = new Uint8Array(size);
    for (let i = 0, at = 0; i < parts.length; at += parts[i++].length) content.set(parts[i], at);
    onPart(content, response.headers);
  }
}

export function post<T>(path: string, body: unknown = {}, signal?: AbortSignal): Promise<T> {
  return request<T>("POST", path, body, signal);
}

export function put<T>(path: string, body: unknown): Promise<T> {
  return request<T>("PUT", path, body);
}

export function remove<T>(path: string): Promise<T> {
  return request<T>("DELETE", path);
}

async function request<T>(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<T> {
  const response = await send(method, path, body, signal);
  return (await response.json()) as T;
}

async function send(
  method: string,
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      signal,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw UNREACHABLE;
  }
  if (!response.ok) throw await readError(response);
  return response;
}

async function readError(response: Response): Promise<ApiError> {
  try {
    const { error } = await response.json();
    return new ApiError(error.message, error.where, error.todo, response.status);
  } catch {
    return new ApiError(`The lab answered with status ${response.status}.`, null, null, response.status);
  }
}

/** Whether an error only says that its request is no longer wanted. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}

/** Post a request whose answer is JSON lines; each is passed on as soon as it arrives. */
export async function stream<T>(
  path: string,
  body: unknown,
  onLine: (line: T) => void,
  signal?: AbortSignal,
): Promise<void> {
  const response = await send("POST", path, body, signal);
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = done ? "" : lines.pop()!;
    for (const line of lines) {
      if (!line) continue;
      const content = JSON.parse(line);
      if (content.error) throw new ApiError(content.error.message, content.error.where, content.error.todo);
      onLine(content as T);
    }
    if (done) return;
  }
}

/** Server-sent events by name until the returned function is called; the browser reconnects. */
export function events(
  path: string,
  handlers: Record<string, (data: unknown, id: string) => void>,
  onState: (isConnected: boolean) => void = () => {},
): () => void {
  const source = new EventSource(path);
  for (const [name, handle] of Object.entries(handlers)) {
    source.addEventListener(name, (event) => handle(JSON.parse(event.data), event.lastEventId));
  }
  source.addEventListener("open", () => onState(true));
  source.addEventListener("error", () => onState(false));
  return () => source.close();
}
