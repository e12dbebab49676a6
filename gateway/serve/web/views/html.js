/** The view of the `html` renderer. */
import { drawArtifact } from "./artifact.js";
import { startView } from "./layout.js";

startView("html", drawArtifact);
