/** The view of the `code` renderer. */
import { drawFile } from "./file.js";
import { startView } from "./layout.js";

startView("code", drawFile);
