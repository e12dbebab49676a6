/** A host page: one view in a sandboxed frame with the policy of the specification, on the official AppBridge. */
import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

const POLICY = "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; media-src 'self' data:; connect-src 'none'; object-src 'none'; base-uri 'self'; frame-src ";

/** What the view asked of the host, and the heights it reported. */
window.asked = [];
window.sizes = [];

/**
 * Show a view. `can` are the host's capabilities, `send` which notifications it sends: input, result.
 */
window.openView = async ({ html, frames, context, can, send, input, result }) => {
  document.body.classList.toggle("dark", context.theme === "dark");
  const bridge = new AppBridge(null, { name: "Test host", version: "1.0.0" }, can, { hostContext: context });
  window.bridge = bridge;
  bridge.oncalltool = (params) => window.callTool(params.name, params.arguments ?? {});
  bridge.onreadresource = (params) => window.readResource(params.uri);
  for (const name of ["openlink", "downloadfile", "updatemodelcontext", "requestdisplaymode"]) {
    bridge[`on${name}`] = async (params) => {
      window.asked.push([name, params]);
      return name === "requestdisplaymode" ? { mode: "inline" } : {};
    };
  }
  const frame = document.createElement("iframe");
  frame.title = "View";
  frame.setAttribute("sandbox", "allow-scripts allow-forms");
  bridge.onsizechange = ({ height }) => {
    window.sizes.push(height);
    frame.style.height = `${height}px`;
  };
  bridge.oninitialized = () => {
    if (send.includes("input")) bridge.sendToolInput({ arguments: input });
    if (send.includes("result")) bridge.sendToolResult(result);
  };
  document.querySelector("main").replaceChildren(frame);
  await bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
  const policy = `<meta http-equiv="Content-Security-Policy" content="${POLICY}${frames || "'none'"}">`;
  frame.srcdoc = html.replace("<head>", `<head>${policy}`);
};
window.isReady = true;
