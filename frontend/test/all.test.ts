import "./replay.test";
import "./query.test";
import "./show.test";
import "./leads.test";
import "./plane.test";
