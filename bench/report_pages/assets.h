// The style sheet and the script of a page: report.css and report.js, compiled in.
#pragma once

namespace streambp::bench {

extern const char* const kReportStyle;
extern const char* const kReportScript;

}  // namespace streambp::bench
