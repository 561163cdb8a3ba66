// c10d includes it and asks for nothing that is declared here.
#pragma once
